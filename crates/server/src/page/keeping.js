// Stores the state of the page in the browser's database (IndexedDB), so that it survives a reload. Image files are stored
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

async function within(stores, mode, work) {
  const base = await database();
  if (!base) return null;
  return new Promise((done) => {
    const transaction = base.transaction(stores, mode);
    const result = work(...stores.map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => done(result);
    transaction.onerror = transaction.onabort = () => done(null);
  });
}

const light = ({ id, name, path, origin, place, row, image, problem, confirmed, aside, number }) => ({ id, name, path, origin, class: place, row, image, problem, confirmed, aside, number });

export const keepFiles = (pictures) => within(["files", "pictures"], "readwrite", (files, records) => {
  for (const picture of pictures) {
    files.put(picture.blob, picture.id);
    records.put(light(picture), picture.id);
  }
});

export const keepPictures = (pictures) => within(["pictures"], "readwrite", (records) => pictures.forEach((picture) => records.put(light(picture), picture.id)));

export const forget = (ids) => within(["files", "pictures"], "readwrite", (files, records) => ids.forEach((id) => { files.delete(id); records.delete(id); }));

export const keepNotes = (notes) => within(["notes"], "readwrite", (store) => store.put(notes, "page"));

export const forgetAll = () => within(["files", "pictures", "notes"], "readwrite", (...stores) => stores.forEach((store) => store.clear()));

/** Everything that is stored: {pictures, notes}. */
export async function recall() {
  const found = await within(["files", "pictures", "notes"], "readonly", (files, records, notes) => ({
    files: files.getAll(), names: files.getAllKeys(), records: records.getAll(), notes: notes.get("page"),
  }));
  if (!found) return { pictures: [], notes: null };
  const blobs = new Map(found.names.result.map((id, place) => [id, found.files.result[place]]));
  const whole = found.records.result.filter(({ id }) => blobs.has(id));
  const pictures = whole.map(({ class: place, ...rest }) => ({ ...rest, place, blob: blobs.get(rest.id) }));
  return { pictures: pictures.sort((a, b) => a.number - b.number), notes: found.notes.result ?? null };
}
