// The state of the page: images, their classes, and the verdicts of the server. Views subscribe to changes; nothing
// here touches the DOM. The exported functions from `move` to `removeClass` are what the user can do with images; each
// is one step of Undo. A picture is {id, name, path, originalLabel (its class when it was added), label (its class
// now), blob, row (its embedding, as JSON text), image (its measures, for the audit), problem (why it has no row),
// confirmed, quarantined (not audited), removed (only in the history), number (order of adding)}.

import * as storage from "./browser_storage.js";
import { fileKey } from "./file_input.js";
import * as history from "./history.js";
import { revokeAll } from "./object_urls.js";
import * as thumbnails from "./thumbnails.js";
import { counted, imagesInWords } from "./wording.js";

/** The certainty that `trueshot audit` uses by default. */
const DEFAULT_CERTAINTY = 0.8;
/** Files per transaction, so that the page stays responsive. */
const FILES_PER_TRANSACTION = 100;

const state = {
  /** The names of the classes, in the order in which they are shown. */
  classes: [],
  /** Image id → picture. */
  pictures: new Map(),
  /** Image id → its entry in `items` of the last audit, until the image changes. */
  verdicts: new Map(),
  /** The server's response to the last audit; null without an audit. */
  found: null,
  /** The name of the network that computed the rows. */
  embedder: null,
  /** The number of images that are not embedded yet. */
  waiting: 0,
  /** The number of images of this round of embedding, which ends when none is waiting. */
  total: 0,
  /** Whether an audit is running. */
  auditing: false,
  /** Why the last audit failed; null if it did not. */
  problem: null,
  /** The probability from which the audit plans a change. */
  certainty: DEFAULT_CERTAINTY,
  /** The number of the next image. */
  number: 0,
  /** The files of images that were removed in earlier visits. */
  removedFiles: [],
  /** Grows with every change of images or labels; results that were computed before are out of date. */
  revision: 0,
};
/** Removed images that Undo can restore. */
const removed = new Map();
const listeners = new Set();
const editListeners = new Set();

/** The state. Other modules read it; only auditing.js and embedding.js also write some of its fields. */
export const current = () => state;
export const subscribe = (listener) => listeners.add(listener);
/** Calls a function after every change of images or labels, which a new audit must follow. */
export const onEdit = (listener) => editListeners.add(listener);
export const notify = () => listeners.forEach((listener) => listener(state));
const saveNotes = () => storage.saveNotes({ classes: state.classes, embedder: state.embedder, certainty: state.certainty, removedFiles: removedFiles() });

/** What a plan lists of an image: path, class in the folder, and size of the file. */
export const fileOf = ({ path, originalLabel, blob }) => ({ path, label: originalLabel, size: blob.size });
/** The files of images that were removed from the page, also in earlier visits. They are still in the folder of the user. */
export function removedFiles() {
  const paths = new Set(pictures().map(({ path }) => path));
  const files = [...state.removedFiles, ...[...removed.values()].map(fileOf)].filter(({ path }) => !paths.has(path));
  // A file that was removed in several visits is listed once, as it was last.
  return [...new Map(files.map((file) => [file.path, file])).values()];
}

/** Whether an image is on the page, or removed so that Undo can restore it. */
export const has = (id) => state.pictures.has(id) || removed.has(id);
export const pictures = () => [...state.pictures.values()];
export const verdictOf = (id) => state.verdicts.get(id) ?? null;
export const inQuarantine = () => pictures().filter((picture) => picture.quarantined);
/** The images that an audit compares: with an embedding and not in quarantine. */
export const audited = () => pictures().filter((picture) => picture.row && !picture.quarantined);
export const classesInUse = () => new Set(audited().map((picture) => picture.label)).size;
export const inClass = (label) => pictures().filter((picture) => picture.label === label && !picture.quarantined).sort((a, b) => a.number - b.number);

/** The images of every class, in the order of adding. */
export function byClass() {
  const groups = new Map(state.classes.map((name) => [name, []]));
  for (const picture of pictures()) if (!picture.quarantined) groups.get(picture.label).push(picture);
  for (const group of groups.values()) group.sort((a, b) => a.number - b.number);
  return groups;
}

/** The ids of the images whose verdict has one of these actions, the most probably wrong first. */
export const withAction = (...actions) => [...state.verdicts]
  .filter(([id, verdict]) => actions.includes(verdict.action) && state.pictures.has(id))
  .sort(([, a], [, b]) => b.p_wrong - a.p_wrong)
  .map(([id]) => id);

/** Restores the state of an earlier visit. Returns the images that are not embedded yet. */
export async function recall(embedder) {
  const { pictures: stored, notes } = await storage.load();
  // Rows of another backbone cannot be compared with new ones: the images are embedded again.
  const usable = notes?.embedder === embedder;
  state.embedder = embedder;
  state.classes = notes?.classes ?? [];
  state.certainty = notes?.certainty ?? DEFAULT_CERTAINTY;
  state.removedFiles = notes?.removedFiles ?? [];
  for (const picture of stored) {
    if (!usable) Object.assign(picture, { row: null, image: null, problem: null });
    state.pictures.set(picture.id, picture);
    state.number = Math.max(state.number, picture.number + 1);
  }
  addMissingClasses();
  edited();
  return pictures().filter((picture) => !picture.row && !picture.problem);
}

/** Separates files [{file, path}] from those that are on the page already, with the same path and size. */
export function separateKnown(files) {
  const known = new Set(pictures().map(({ path, blob }) => fileKey(path, blob)));
  const isKnown = ({ file, path }) => known.has(fileKey(path, file));
  return { kept: files.filter((entry) => !isKnown(entry)), skipped: files.filter(isKnown).map(({ path }) => ({ name: path, reason: "already on the page" })) };
}

/** Adds files: [{file, path, label}]. A file whose image was removed restores this image: if it became a new one, Undo
 * could add the same file a second time. When all are stored, returns the images that are to be embedded: they have no
 * row, and are on the page or can be restored by Undo. */
export async function add(files) {
  const removedByKey = new Map([...removed.values()].map((picture) => [fileKey(picture.path, picture.blob), picture]));
  const added = files.map(({ file, path, label }) => {
    const key = fileKey(path, file);
    const known = removedByKey.get(key);
    removedByKey.delete(key);
    const labels = { blob: file, originalLabel: label, label, problem: null, confirmed: false, quarantined: false };
    return known ? Object.assign(known, labels) : {
      id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, name: file.name, path, ...labels,
      row: null, image: null, number: state.number++,
    };
  });
  for (const picture of added) {
    removed.delete(picture.id);
    state.pictures.set(picture.id, picture);
  }
  addMissingClasses();
  notify();
  // The user can remove images meanwhile.
  const isPresent = ({ id }) => state.pictures.has(id);
  for (let at = 0; at < added.length; at += FILES_PER_TRANSACTION) await storage.saveFiles(added.slice(at, at + FILES_PER_TRANSACTION).filter(isPresent));
  saveNotes();
  return added.filter(({ id, row }) => has(id) && !row);
}

/** Adds the classes of images that are not in the list, in alphabetical order. The order of the others never changes. */
function addMissingClasses() {
  const known = new Set(state.classes);
  const missing = new Set(pictures().map((picture) => picture.label).filter((label) => !known.has(label)));
  state.classes = [...state.classes, ...[...missing].sort((a, b) => a.localeCompare(b, "en", { numeric: true }))];
}

/** Saves what the server returned for images: row, image, problem. */
export const saveEmbedded = (embedded) => storage.saveRecords(embedded.filter((picture) => state.pictures.has(picture.id)));

/** Removes all rows, because the server now uses another network, whose rows cannot be compared with them. Returns all
 * images, including those that Undo can restore: they are to be embedded again. */
export function changeEmbedder(embedder) {
  state.embedder = embedder;
  const all = [...state.pictures.values(), ...removed.values()];
  for (const picture of all) Object.assign(picture, { row: null, image: null, problem: null });
  storage.saveRecords(pictures());
  edited();
  return all;
}

/** Shows a change of images or labels and schedules an audit. */
export function edited() {
  state.revision += 1;
  saveNotes();
  editListeners.forEach((listener) => listener());
  notify();
}

// Changes that can be undone. A snapshot is {classes, pictures: [{id, label, confirmed, quarantined, removed,
// verdict}]}.

const find = (id) => state.pictures.get(id) ?? removed.get(id);

function snapshot(ids) {
  return {
    classes: [...state.classes],
    pictures: ids.map(find).map(({ id, label, confirmed, quarantined }) => ({ id, label, confirmed, quarantined, removed: removed.has(id), verdict: verdictOf(id) })),
  };
}

/** Puts a snapshot back. Its verdicts are shown until the next audit arrives. */
function restore({ classes, pictures: stored }) {
  state.classes = [...classes];
  // The files of restored images are not in the database any more.
  storage.saveFiles(stored.filter(({ id, removed: isRemoved }) => !isRemoved && removed.has(id)).map(({ id }) => find(id)));
  for (const { id, verdict, removed: isRemoved, ...labels } of stored) {
    Object.assign(find(id), labels);
    setRemoved(id, isRemoved);
    if (verdict) state.verdicts.set(id, verdict);
    else state.verdicts.delete(id);
  }
  syncAfterChange(stored.map(({ id }) => id));
  edited();
}

/** Moves an image to the removed ones, or back. */
function setRemoved(id, isRemoved) {
  const [from, to] = isRemoved ? [state.pictures, removed] : [removed, state.pictures];
  if (!from.has(id)) return;
  to.set(id, from.get(id));
  from.delete(id);
}

/** Makes classes, verdicts and the database consistent with changed images. */
function syncAfterChange(ids) {
  addMissingClasses();
  const classes = new Set(state.classes);
  for (const [id, { suggested }] of state.verdicts) if (suggested && !classes.has(suggested)) state.verdicts.delete(id);
  storage.remove(ids.filter((id) => removed.has(id)));
  storage.saveRecords(ids.filter((id) => state.pictures.has(id)).map(find));
}

/** Changes images and records the change for Undo, described by `words`. `change` returns the new values of an image. */
function edit(words, ids, change, classes = state.classes) {
  const before = snapshot(ids);
  state.classes = [...classes];
  for (const id of ids) {
    const { removed: isRemoved = false, ...labels } = change(find(id));
    Object.assign(find(id), labels);
    setRemoved(id, isRemoved);
    state.verdicts.delete(id);
  }
  syncAfterChange(ids);
  history.record({ words, before, after: snapshot(ids) });
  edited();
}

/** Undoes the last change, or redoes it. Returns the ids of its images; null if there is nothing to do. */
export const undo = () => history.undo(restore)?.before.pictures.map(({ id }) => id) ?? null;
export const redo = () => history.redo(restore)?.before.pictures.map(({ id }) => id) ?? null;

/** The ids of these images that are still on the page. */
const present = (ids) => ids.filter((id) => state.pictures.has(id));
/** The description of a change, such as "move 3 images to owl". */
const inWords = (verb, ids, rest = "") => `${verb} ${imagesInWords(ids.map(find))}${rest}`;

/** Moves images to a class, which may be new. A label that the user chose is confirmed. */
export function move(ids, label) {
  const moved = present(ids).filter((id) => find(id).label !== label || find(id).quarantined);
  if (moved.length > 0) edit(inWords("move", moved, ` to ${label}`), moved, () => ({ label, confirmed: true, quarantined: false }));
}

/** Confirms the labels of images. */
export function keep(ids) {
  const kept = present(ids).filter((id) => find(id).row && !find(id).quarantined && !find(id).confirmed);
  if (kept.length > 0) edit(inWords("keep", kept), kept, () => ({ confirmed: true }));
}

export function quarantine(ids) {
  const moved = present(ids).filter((id) => !find(id).quarantined);
  if (moved.length > 0) edit(inWords("quarantine", moved), moved, () => ({ quarantined: true, confirmed: false }));
}

/** Puts images from the quarantine back into their classes. */
export const putBack = (ids) => present(ids).length > 0 && edit(inWords("put back", present(ids)), present(ids), () => ({ quarantined: false }));

export const remove = (ids) => present(ids).length > 0 && edit(inWords("remove", present(ids)), present(ids), () => ({ removed: true }));

/** Makes the planned changes of these images: those to relabel move, those to quarantine are quarantined. */
export function accept(ids) {
  const planned = present(ids).filter((id) => ["relabel", "quarantine"].includes(verdictOf(id)?.action));
  if (planned.length === 0) return;
  const target = planned.length === 1 && verdictOf(planned[0]).suggested;
  const change = ({ id }) => (verdictOf(id).action === "relabel" ? { label: verdictOf(id).suggested, confirmed: false } : { quarantined: true, confirmed: false });
  const description = target ? inWords("move", planned, ` to ${target}`) : planned.length === 1 ? inWords("quarantine", planned) : `make ${planned.length} planned changes`;
  edit(description, planned, change);
}

export function addClass(name) {
  if (!state.classes.includes(name)) edit(`add the class ${name}`, [], () => ({}), [...state.classes, name]);
}

/** Gives a class another name. If another class has this name, the two are merged. */
export function renameClass(from, to) {
  if (from === to) return;
  const merges = state.classes.includes(to);
  const classes = merges ? state.classes.filter((name) => name !== from) : state.classes.map((name) => (name === from ? to : name));
  const ids = pictures().filter((picture) => picture.label === from).map(({ id }) => id);
  edit(merges ? `merge ${from} into ${to}` : `rename ${from} to ${to}`, ids, () => ({ label: to }), classes);
}

/** Removes a class with its images, including those in quarantine. */
export function removeClass(name) {
  const ids = pictures().filter(({ label }) => label === name).map(({ id }) => id);
  edit(`remove the class ${name}${ids.length > 0 ? ` and ${counted(ids.length, "image")}` : ""}`, ids, () => ({ removed: true }), state.classes.filter((other) => other !== name));
}

export function setCertainty(certainty) {
  state.certainty = certainty;
  edited();
}

/** Deletes everything; this cannot be undone. */
export async function clear() {
  revokeAll();
  thumbnails.clear();
  Object.assign(state, { classes: [], pictures: new Map(), verdicts: new Map(), found: null, problem: null, certainty: DEFAULT_CERTAINTY, removedFiles: [] });
  removed.clear();
  history.clear();
  await storage.removeAll();
  edited();
}
