// Files from the browser: chosen in a dialog, dropped, or contained in a chosen or dropped folder.

const PICTURES = /\.(bmp|gif|jfif|jpe|jpe?g|png|tiff?|webp)$/i;
/** Files and folders that the command line ignores too: hidden ones, and the quarantine of a repair. */
const HIDDEN = /^(\.|thumbs\.db$|desktop\.ini$|__MACOSX$|_quarantine$)/i;

/** Names in the order that people expect: image-2 before image-10. */
const { compare } = new Intl.Collator("en", { numeric: true });

/** Separates images, in the order of their names, from other files, which are skipped with a reason and never sent. */
export function separateImages(files) {
  const kept = [], skipped = [];
  for (const entry of files) {
    const { file } = entry;
    // A file or folder that the user gives itself is read whatever its name is.
    if (entry.path.split("/").slice(1).some((part) => HIDDEN.test(part))) continue;
    if (/\.(heic|heif|avif|cr2|nef|arw|dng)$/i.test(file.name)) {
      skipped.push({ name: entry.path, reason: "this format is not supported; convert it to JPEG or PNG" });
    } else if (PICTURES.test(file.name) || /^image\/(bmp|gif|jpeg|png|tiff|webp)$/.test(file.type)) {
      kept.push(entry);
    } else if (!HIDDEN.test(file.name)) {
      skipped.push({ name: entry.path, reason: "not an image, by its file name" });
    }
  }
  return { kept: kept.sort((a, b) => compare(a.path, b.path)), skipped };
}

/** Separates the images of one folder from those that are next to the folders of its classes, which have no class. */
export function separateLoose(images) {
  const isNested = ({ path }) => path.split("/").length > 2;
  const hasOneTop = new Set(images.map(({ path }) => path.split("/")[0])).size === 1;
  if (!hasOneTop || !images.some(isNested)) return { kept: images, skipped: [] };
  const loose = images.filter((entry) => !isNested(entry));
  return { kept: images.filter(isNested), skipped: loose.map(({ path }) => ({ name: path, reason: "not in the folder of a class" })) };
}

/** The name of the folder that contains a file: its class. */
export const folderOf = (path) => path.split("/").slice(-2, -1)[0] ?? null;

/** The files of an input element for files or for a folder. */
export const chosen = (input) => [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));

/** The dropped files, and all files in dropped folders. */
export async function dropped(transfer) {
  // The browser empties the list at the first await.
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
  // readEntries returns a part of the folder at a time, and an empty list at the end.
  for (;;) {
    const piece = await new Promise((done) => reader.readEntries(done, () => done([])));
    if (piece.length === 0) return;
    for (const inner of piece) await walk(inner, `${folder}${entry.name}/`, all);
  }
}
