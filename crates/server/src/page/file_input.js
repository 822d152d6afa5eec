// Files from the browser: chosen in a dialog, dropped, or contained in a chosen or dropped folder. An entry is {file,
// path}: the path begins with the name of the chosen or dropped folder.

/** File names of images that the server can read. */
const PICTURES = /\.(bmp|gif|jfif|jpe|jpe?g|png|tiff?|webp)$/i;
/** Files and folders that the command line ignores too: hidden ones, and the quarantine of a repair. */
const HIDDEN = /^(\.|thumbs\.db$|desktop\.ini$|__MACOSX$|_quarantine$)/i;

/** The folders of splits, which are not classes. */
const SPLIT = /^(train|training|val|valid|validation|test|testing|trainval)$/i;

/** Tells files apart: two files with the same path and size are the same. */
export const fileKey = (path, { size }) => `${size} ${path}`;

/** Names in the order that people expect: image-2 before image-10. */
const { compare } = new Intl.Collator("en", { numeric: true });

/** Separates images, in the order of their names, from other files, which are skipped with a reason and never sent. */
export function separateImages(files) {
  const kept = [], skipped = [];
  for (const entry of files) {
    const { file } = entry;
    // A file or folder that the user has chosen is read whatever its name is; only names below it are checked.
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
  if (!hasOneTop(images) || !images.some(isNested)) return { kept: images, skipped: [] };
  const loose = images.filter((entry) => !isNested(entry));
  return { kept: images.filter(isNested), skipped: loose.map(({ path }) => ({ name: path, reason: "not in the folder of a class" })) };
}

/** Whether an image is at least two folders deep: in the folder of a class within the folder of the collection. */
const isNested = ({ path }) => path.split("/").length > 2;
/** The first name of a path: a chosen or dropped folder, or a single file. */
const topOf = ({ path }) => path.split("/")[0];
const hasOneTop = (images) => new Set(images.map(topOf)).size === 1;

/** The classes of images by their folders, in the order of the images; null for an image that is in no folder. As on the
 * command line, folders above the classes are left off if all images share them, so a class may be a folder in a folder,
 * such as `Latin/a`. Throws an error if they are the folders of splits. */
export function classesByFolder(images) {
  const groups = grouped(images);
  refuseSplits([...groups.keys()]);
  const classes = new Map([...groups.values()].flatMap((group) => classesBelow(group, groups.size === 1)));
  refuseSplits([...classes.values()].filter(Boolean).map((name) => name.split("/")[0]));
  return images.map((image) => classes.get(image));
}

/** Refuses the folders of several splits, as `audit` and `repair` do. */
function refuseSplits(folders) {
  const names = [...new Set(folders)].sort();
  if (names.length < 2 || !names.every((name) => SPLIT.test(name))) return;
  throw new Error(`The folders ${names.join(", ")} are splits rather than classes. Add one of them at a time.`);
}

/** The images by the first folder of their paths. */
function grouped(images) {
  const groups = new Map();
  for (const image of images) {
    if (!groups.has(topOf(image))) groups.set(topOf(image), []);
    groups.get(topOf(image)).push(image);
  }
  return groups;
}

/** The images below one folder, each as [image, class]. `isOnly` is whether all images are below this folder. The folder
 * is a collection of class folders, or itself a class. If it is the only one, a single class folder in it makes it a
 * collection, and images beside that folder have no class. Otherwise it is a collection only if all its images are in
 * class folders. */
function classesBelow(images, isOnly) {
  const isCollection = isOnly ? images.some(isNested) : images.every(isNested);
  const folders = images.map(({ path }) => path.split("/").slice(isCollection ? 1 : 0, -1));
  const above = folders.map((names) => names.slice(0, -1));
  // How many folders above the classes all images share.
  let depth = 0;
  while (above.every((names) => names.length > depth && names[depth] === above[0][depth])) depth += 1;
  return images.map((image, index) => [image, folders[index].slice(depth).join("/") || null]);
}

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

/** Adds a dropped file, or all files in a dropped folder, to `all`. */
async function walk(entry, folder, all) {
  if (entry.isFile) {
    const file = await new Promise((done) => entry.file(done, () => done(null)));
    if (file) all.push({ file, path: folder + entry.name });
    return;
  }
  const reader = entry.createReader();
  // readEntries returns a part of the folder at a time, and an empty list at the end.
  for (;;) {
    const part = await new Promise((done) => reader.readEntries(done, () => done([])));
    if (part.length === 0) return;
    for (const inner of part) await walk(inner, `${folder}${entry.name}/`, all);
  }
}
