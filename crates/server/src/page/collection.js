// The state of the page: images, their classes, and the verdicts of the server. Views subscribe to changes; nothing here
// touches the DOM. A picture is {id, name, path, origin (its class when it was added), place (its class now), blob, url,
// row (its embedding), image (its measures, for the audit), problem (why it has no row), confirmed, aside (set aside: it
// belongs to no class and is not audited), number (order of adding)}.

import * as keeping from "./keeping.js";
import * as server from "./server.js";

const BATCH_FILES = 8;
const BATCH_BYTES = 16 << 20;
/** The certainty that `trueshot audit` uses by default. */
export const DEFAULT_CERTAINTY = 0.75;

const state = {
  classes: [],
  pictures: new Map(),
  verdicts: new Map(),
  found: null,
  embedder: null,
  waiting: 0,
  total: 0,
  looking: false,
  problem: null,
  classifier: null,
  certainty: DEFAULT_CERTAINTY,
  number: 0,
};
const listeners = new Set();
let queue = [];
let embedding = false;
let timer = null;
let looking = null;

export const look = () => state;
export const subscribe = (listener) => listeners.add(listener);
const tell = () => listeners.forEach((listener) => listener(state));
const keepNotes = () => keeping.keepNotes({ classes: state.classes, embedder: state.embedder, classifier: state.classifier, certainty: state.certainty });

export const inClass = (place) => [...state.pictures.values()].filter((picture) => picture.place === place && !picture.aside);
export const setAsideImages = () => [...state.pictures.values()].filter((picture) => picture.aside);
export const verdictOf = (id) => state.verdicts.get(id) ?? null;

/** The images with one of these actions, the most probably wrong first. */
export const withAction = (...actions) => [...state.verdicts]
  .filter(([id, verdict]) => actions.includes(verdict.action) && state.pictures.has(id))
  .sort(([, a], [, b]) => b.p_wrong - a.p_wrong)
  .map(([id]) => id);

/** Restores the state of an earlier visit. */
export async function recall(embedder) {
  const { pictures, notes } = await keeping.recall();
  // Rows of another backbone cannot be compared with new ones: the images are embedded again.
  const usable = notes?.embedder === embedder;
  state.embedder = embedder;
  state.classes = notes?.classes ?? [];
  state.certainty = notes?.certainty ?? DEFAULT_CERTAINTY;
  state.classifier = usable ? notes.classifier : null;
  for (const picture of pictures) {
    if (!state.classes.includes(picture.place)) state.classes.push(picture.place);
    if (!usable) Object.assign(picture, { row: null, image: null, problem: null });
    state.pictures.set(picture.id, { ...picture, url: URL.createObjectURL(picture.blob) });
    state.number = Math.max(state.number, picture.number + 1);
  }
  queue = [...state.pictures.values()].filter((picture) => !picture.row && !picture.problem);
  embedQueue();
  changed();
}

/** Adds files: [{file, path, place}]. */
export async function add(files) {
  const added = files.map(({ file, path, place }) => ({
    id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, name: file.name, path, origin: place, place,
    blob: file, url: URL.createObjectURL(file), row: null, problem: null, confirmed: false, aside: false, number: state.number++,
  }));
  for (const picture of added) {
    if (!state.classes.includes(picture.place)) state.classes.push(picture.place);
    state.pictures.set(picture.id, picture);
  }
  tell();
  await keeping.keepFiles(added);
  keepNotes();
  queue.push(...added);
  embedQueue();
}

/** Embeds the queued images in small batches, so that progress is visible. */
async function embedQueue() {
  if (embedding) return;
  embedding = true;
  state.total = queue.length;
  while (queue.length > 0) {
    state.total = Math.max(state.total, queue.length);
    state.waiting = queue.length;
    tell();
    const batch = [queue.shift()];
    let bytes = batch[0].blob.size;
    while (queue.length > 0 && batch.length < BATCH_FILES && bytes + queue[0].blob.size <= BATCH_BYTES) {
      bytes += queue[0].blob.size;
      batch.push(queue.shift());
    }
    await embed(batch);
  }
  embedding = false;
  state.waiting = 0;
  changed();
}

/** Embeds a batch; one image at a time if the server refuses the batch as too large. */
async function embed(batch) {
  try {
    const { pictures } = await server.embed(batch.map((picture) => new File([picture.blob], picture.name)));
    pictures.forEach(({ row, image, error }, place) => Object.assign(batch[place], { row: row ?? null, image: image ?? null, problem: error ?? null }));
  } catch (error) {
    if (batch.length > 1 && error.status === 413) {
      for (const picture of batch) await embed([picture]);
      return;
    }
    batch.forEach((picture) => { picture.problem = error.message; });
  }
  keeping.keepPictures(batch.filter((picture) => state.pictures.has(picture.id)));
}

/** The support set as a request body, and the pictures of its rows in the same order. */
export function support() {
  const usable = [...state.pictures.values()].filter((picture) => picture.row && !picture.aside);
  return {
    pictures: usable,
    body: {
      rows: usable.map((picture) => picture.row),
      labels: usable.map((picture) => picture.place),
      items: usable.map((picture) => picture.path.slice(-120)),
      confirmed: usable.map((picture) => Boolean(picture.confirmed)),
      embedder: state.embedder,
      images: usable.map((picture) => picture.image ?? null),
    },
  };
}

export const classesInUse = () => new Set([...state.pictures.values()].filter((picture) => picture.row && !picture.aside).map((picture) => picture.place)).size;

/** Shows a change of the collection and schedules an audit; changes in quick succession cause one audit. */
function changed() {
  state.classifier = null;
  keepNotes();
  tell();
  clearTimeout(timer);
  timer = setTimeout(audit, 120);
}

async function audit() {
  looking?.abort();
  if (state.waiting > 0) return;
  if (classesInUse() < 2) {
    Object.assign(state, { verdicts: new Map(), found: null, looking: false, problem: null });
    return tell();
  }
  const { pictures, body } = support();
  const current = looking = new AbortController();
  state.looking = true;
  tell();
  try {
    const found = await server.audit(body, state.certainty, current.signal);
    if (current !== looking) return;
    state.verdicts = new Map(pictures.map((picture, place) => [picture.id, found.items[place]]));
    Object.assign(state, { found, problem: null });
  } catch (error) {
    if (error.name === "AbortError") return;
    Object.assign(state, { problem: error.message, verdicts: new Map(), found: null });
  }
  state.looking = false;
  tell();
}

/** Moves an image to a class. A label that the user chose is confirmed. */
export function move(id, place) {
  const picture = state.pictures.get(id);
  if (picture && (picture.place !== place || picture.aside)) decide(id, { place, confirmed: true, aside: false });
}

/** Makes the planned changes of these images: those to relabel move, those to quarantine are set aside. */
export function accept(ids) {
  const changes = ids.map((id) => [state.pictures.get(id), state.verdicts.get(id)]).filter(([picture, verdict]) => picture && ["relabel", "quarantine"].includes(verdict?.action));
  for (const [picture, verdict] of changes) {
    Object.assign(picture, verdict.action === "relabel" ? { place: verdict.suggested, confirmed: false } : { aside: true, confirmed: false });
    state.verdicts.delete(picture.id);
  }
  keeping.keepPictures(changes.map(([picture]) => picture));
  changed();
}

/** Changes what the user decided about an image: its class (place), confirmed, aside. Returns what it was before. */
export function decide(id, decision) {
  const picture = state.pictures.get(id);
  const before = { place: picture.place, confirmed: picture.confirmed, aside: picture.aside };
  Object.assign(picture, decision);
  keeping.keepPictures([picture]);
  state.verdicts.delete(id);
  changed();
  return before;
}

export const setAside = (id) => decide(id, { aside: true, confirmed: false });
export const putBack = (id) => decide(id, { aside: false });

export function setCertainty(certainty) {
  state.certainty = certainty;
  changed();
}

export const confirm = (id) => decide(id, { confirmed: true });

export function remove(ids) {
  for (const id of ids) {
    URL.revokeObjectURL(state.pictures.get(id)?.url);
    state.pictures.delete(id);
    state.verdicts.delete(id);
  }
  queue = queue.filter((picture) => !ids.includes(picture.id));
  keeping.forget(ids);
  changed();
}

export function addClass(name) {
  if (!state.classes.includes(name)) state.classes.push(name);
  keepNotes();
  tell();
}

export function renameClass(from, to) {
  if (from === to) return;
  const moved = [...state.pictures.values()].filter((picture) => picture.place === from);
  moved.forEach((picture) => { picture.place = to; });
  state.classes = state.classes.includes(to) ? state.classes.filter((name) => name !== from) : state.classes.map((name) => (name === from ? to : name));
  keeping.keepPictures(moved);
  changed();
}

export function removeClass(name) {
  state.classes = state.classes.filter((other) => other !== name);
  remove(inClass(name).map((picture) => picture.id));
}

export async function clear() {
  for (const { url } of state.pictures.values()) URL.revokeObjectURL(url);
  queue = [];
  Object.assign(state, { classes: [], pictures: new Map(), verdicts: new Map(), found: null, problem: null, certainty: DEFAULT_CERTAINTY });
  await keeping.forgetAll();
  changed();
}

/** The id of a classifier for the current labels, fitted when it is first needed. */
export async function classifier() {
  if (state.classifier && await server.isKept(state.classifier)) return state.classifier;
  const made = await server.fit(support().body);
  state.classifier = made.id;
  keepNotes();
  return made.id;
}
