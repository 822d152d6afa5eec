// Stores the collection in the browser's database (IndexedDB), so that it survives a reload. Image files are stored
// separately from their labels, so that moving an image does not write the file again. If the database is not available
// (a private window), the page works without it and its state is lost when it is closed.

let opened = null;

function database() {
  opened ??= new Promise((done) => {
    const request = indexedDB.open("trueshot", 1);
    request.onupgradeneeded = () => ["pictures", "files", "notes"].forEach((name) => request.result.createObjectStore(name));
    request.onsuccess = () => done(request.result);
    request.onerror = () => done(null);
    request.onblocked = () => done(null);
  });
  return opened;
}

async function inTransaction(stores, mode, work) {
  const base = await database();
  if (!base) return null;
  return new Promise((done) => {
    const transaction = base.transaction(stores, mode);
    const result = work(...stores.map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => done(result);
    transaction.onerror = transaction.onabort = () => done(null);
  });
}

/** What is stored about an image, without its file. */
const record = ({ id, name, path, originalLabel, label, row, image, problem, confirmed, quarantined, number }) =>
  ({ id, name, path, origin: originalLabel, class: label, row, image, problem, confirmed, aside: quarantined, number });

/** The inverse of `record`, with the file. */
const picture = ({ origin, class: label, aside, row, ...rest }, blob) =>
  ({ ...rest, row: Array.isArray(row) ? JSON.stringify(row) : row, originalLabel: origin, label, quarantined: Boolean(aside), blob });

export const saveFiles = (pictures) => inTransaction(["files", "pictures"], "readwrite", (files, records) => {
  for (const picture of pictures) {
    files.put(picture.blob, picture.id);
    records.put(record(picture), picture.id);
  }
});

export const saveRecords = (pictures) => inTransaction(["pictures"], "readwrite", (records) => pictures.forEach((picture) => records.put(record(picture), picture.id)));

export const remove = (ids) => inTransaction(["files", "pictures"], "readwrite", (files, records) => ids.forEach((id) => { files.delete(id); records.delete(id); }));

/** Saves what belongs to no image of the page: the order of the classes, the embedder, the classifier, the certainty and the
 * files of images that were removed. */
export const saveNotes = (notes) => inTransaction(["notes"], "readwrite", (store) => store.put(notes, "page"));

export const removeAll = () => inTransaction(["files", "pictures", "notes"], "readwrite", (...stores) => stores.forEach((store) => store.clear()));

/** Everything that is stored: {pictures, notes}. */
export async function load() {
  const found = await inTransaction(["files", "pictures", "notes"], "readonly", (files, records, notes) => ({
    files: files.getAll(), names: files.getAllKeys(), records: records.getAll(), notes: notes.get("page"),
  }));
  if (!found) return { pictures: [], notes: null };
  const blobs = new Map(found.names.result.map((id, index) => [id, found.files.result[index]]));
  const pictures = found.records.result.filter(({ id }) => blobs.has(id)).map((stored) => picture(stored, blobs.get(stored.id)));
  return { pictures: pictures.sort((a, b) => a.number - b.number), notes: found.notes.result ?? null };
}
