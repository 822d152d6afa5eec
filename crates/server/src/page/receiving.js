// Files as browsers hand them over: chosen, dropped, or whole folders of them.

const PICTURES = /\.(bmp|gif|jpe?g|png|tiff?|webp)$/i;

/** What is no picture, with the reason: skipped without being sent. */
export function sorted(files) {
  const kept = [], skipped = [];
  for (const entry of files) {
    const { file } = entry;
    if (/\.(heic|heif|avif|cr2|nef|arw|dng)$/i.test(file.name)) {
      skipped.push({ name: entry.path, reason: "this format cannot be read; export it as JPEG" });
    } else if (PICTURES.test(file.name) || /^image\/(bmp|gif|jpeg|png|tiff|webp)$/.test(file.type)) {
      kept.push(entry);
    } else if (!/^(\.|thumbs\.db$|desktop\.ini$)/i.test(file.name)) {
      skipped.push({ name: entry.path, reason: "no picture by its name" });
    }
  }
  return { kept, skipped };
}

/** The folder a file is in, which is its class. */
export const folderOf = (path) => path.split("/").slice(-2, -1)[0] ?? null;

/** From an input for files or for a folder. */
export const chosen = (input) => [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));

/** From something dropped, folders and all that is in them. */
export async function dropped(transfer) {
  // The list is emptied as soon as we wait for anything.
  const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const all = [];
  for (const entry of entries) {
    if (entry instanceof File) all.push({ file: entry, path: entry.name });
    else if (entry) await walk(entry, "", all);
  }
  return all;
}

async function walk(entry, folder, all) {
  if (entry.isFile) {
    const file = await new Promise((done) => entry.file(done, () => done(null)));
    if (file) all.push({ file, path: folder + entry.name });
    return;
  }
  const reader = entry.createReader();
  // A folder is read in pieces, the last of which is empty.
  for (;;) {
    const piece = await new Promise((done) => reader.readEntries(done, () => done([])));
    if (piece.length === 0) return;
    for (const inner of piece) await walk(inner, `${folder}${entry.name}/`, all);
  }
}
