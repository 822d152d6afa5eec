// Stores the collection in the browser's database (IndexedDB), so that it survives a reload. Image files are stored
// separately from their labels, so that moving an image does not write the file again. If the database is not available
// (a private window), the page works without it and its state is lost when it is closed.

/** The name of the lock that the tab which works on the collection holds. */
const LOCK = "trueshot-page";
/** After a reload, the lock of the page before is released within this time in ms. */
const RELEASE_MS = 500;

/** The promise of the database, opened when it is first needed; it resolves to null if the browser has none. */
let opened = null;
/** Called when something cannot be stored. */
let reportFailure = () => {};

/** Sets the function that is called whenever something cannot be stored: the database is not available, or full. */
export const onFailure = (listener) => { reportFailure = listener; };

/** Waits until no other tab of this browser works on the collection, and keeps others waiting from then on: two tabs
 * would overwrite each other's notes. Calls `onWait` if another tab is open. Does not wait in browsers without locks. */
export async function becomeOnlyTab(onWait) {
  if (!navigator.locks) return;
  const timer = setTimeout(onWait, RELEASE_MS);
  // The lock is held as long as the promise that the callback returns is pending: until the page is closed.
  await new Promise((done) => {
    navigator.locks.request(LOCK, () => { done(); return new Promise(() => {}); }).catch(done);
  });
  clearTimeout(timer);
}

/** Opens the database when it is first needed. */
function database() {
  opened ??= new Promise((done, fail) => {
    const request = indexedDB.open("trueshot-page", 1);
    request.onupgradeneeded = () => ["pictures", "files", "notes"].forEach((name) => request.result.createObjectStore(name));
    request.onsuccess = () => done(request.result);
    request.onerror = request.onblocked = fail;
  }).catch(() => { reportFailure(); return null; });
  return opened;
}

/** Runs `work` with the object stores of these names in one transaction. Resolves to its result, or to null on failure. */
async function inTransaction(stores, mode, work) {
  const base = await database();
  if (!base) return null;
  return new Promise((done) => {
    const transaction = base.transaction(stores, mode);
    const result = work(...stores.map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => done(result);
    transaction.onerror = transaction.onabort = () => { reportFailure(); done(null); };
  });
}

/** What is stored about an image, without its file. */
const record = ({ blob, ...rest }) => rest;

/** Saves new images with their files. */
export const saveFiles = (pictures) => inTransaction(["files", "pictures"], "readwrite", (files, records) => {
  for (const picture of pictures) {
    files.put(picture.blob, picture.id);
    records.put(record(picture), picture.id);
  }
});

/** Saves what has changed about images, without their files. */
export const saveRecords = (pictures) => inTransaction(["pictures"], "readwrite", (records) => pictures.forEach((picture) => records.put(record(picture), picture.id)));

export const remove = (ids) => inTransaction(["files", "pictures"], "readwrite", (files, records) => ids.forEach((id) => { files.delete(id); records.delete(id); }));

/** Saves what belongs to no image of the page: the order of the classes, the embedder, the certainty and the files of images
 * that were removed. */
export const saveNotes = (notes) => inTransaction(["notes"], "readwrite", (store) => store.put(notes, "page"));

export const removeAll = () => inTransaction(["files", "pictures", "notes"], "readwrite", (...stores) => stores.forEach((store) => store.clear()));

/** Everything that is stored: {pictures, notes}. */
export async function load() {
  const requests = await inTransaction(["files", "pictures", "notes"], "readonly", (files, records, notes) => ({
    files: files.getAll(), names: files.getAllKeys(), records: records.getAll(), notes: notes.get("page"),
  }));
  if (!requests) return { pictures: [], notes: null };
  const blobs = new Map(requests.names.result.map((id, index) => [id, requests.files.result[index]]));
  const pictures = requests.records.result.filter(({ id }) => blobs.has(id)).map((stored) => ({ ...stored, blob: blobs.get(stored.id) }));
  return { pictures: pictures.sort((a, b) => a.number - b.number), notes: requests.notes.result ?? null };
}
