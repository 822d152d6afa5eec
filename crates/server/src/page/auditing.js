// Keeps the verdicts of the collection up to date, and the classifier that is fitted on it.

import * as collection from "./collection.js";
import * as server from "./server.js";

/** The delay before an audit in ms, so that changes in quick succession cause one audit. */
const DELAY_MS = 120;
/** The longest name of an item in a request, in characters. The server allows 512 bytes: 120 characters have at most
 * 480, and 32 are left for the number that makes a name unique, as in " (2)". */
const LONGEST_ITEM_NAME = 120;

/** The timer of the next audit. */
let timer = null;
/** The AbortController of the running audit; null without one. */
let running = null;
/** The last classifier that was fitted, {id, revision}, where `revision` is that of the collection; null without one. */
let fitted = null;
/** The promise of the running `fitCurrent`; null without one. */
let fitting = null;
/** The images of the last audit by their item names. */
let picturesByName = new Map();

/** The image with this name in the last audit. */
export const pictureNamed = (item) => picturesByName.get(item) ?? null;

/** The support set as a request body, and its images by item name, in the order of the rows. */
function support() {
  const byName = new Map();
  for (const picture of collection.audited()) {
    // The end of a path tells images apart better than its beginning.
    const end = [...picture.path].slice(-LONGEST_ITEM_NAME).join("");
    let name = end;
    for (let number = 2; byName.has(name); number++) name = `${end} (${number})`;
    byName.set(name, picture);
  }
  const pictures = [...byName.values()];
  const parts = {
    labels: pictures.map((picture) => picture.label),
    items: [...byName.keys()],
    confirmed: pictures.map((picture) => Boolean(picture.confirmed)),
    embedder: collection.current().embedder,
    images: pictures.map((picture) => picture.image ?? null),
  };
  return { byName, body: server.jsonWithRows(pictures.map((picture) => picture.row), parts) };
}

/** Schedules an audit, and cancels a running one, because its labels are outdated. */
function schedule() {
  running?.abort();
  running = null;
  clearTimeout(timer);
  timer = setTimeout(audit, DELAY_MS);
}

/** Audits the collection, unless images are still being embedded: when the last one is, another audit is scheduled. */
async function audit() {
  const state = collection.current();
  if (state.waiting > 0) return;
  if (collection.classesInUse() < 2) {
    Object.assign(state, { verdicts: new Map(), found: null, auditing: false, problem: null });
    return collection.notify();
  }
  const { byName, body } = support();
  const current = running = new AbortController();
  state.auditing = true;
  collection.notify();
  try {
    const found = await server.audit(body, state.certainty, current.signal);
    // Labels have changed meanwhile: another audit is scheduled.
    if (current !== running) return;
    picturesByName = byName;
    state.verdicts = new Map([...byName.values()].map((picture, index) => [picture.id, found.items[index]]));
    Object.assign(state, { found, problem: null });
  } catch (error) {
    if (current !== running) return;
    Object.assign(state, { problem: error.message, verdicts: new Map(), found: null });
  }
  state.auditing = false;
  collection.notify();
}

/** The id of a classifier for the current labels, fitted when it is first needed. */
export function classifier() {
  fitting ??= fitCurrent().finally(() => { fitting = null; });
  return fitting;
}

/** The id of a classifier for the current labels: the last one if it was fitted on them, otherwise a new one. If the
 * labels change meanwhile, another one is fitted. */
async function fitCurrent() {
  for (;;) {
    const { revision } = collection.current();
    if (fitted?.revision === revision && await server.isKept(fitted.id)) return fitted.id;
    const { id } = await server.fit(support().body);
    // The server stores a limited number of classifiers; the one for the labels before is not needed any more.
    if (fitted && fitted.id !== id) server.remove(fitted.id).catch(() => {});
    fitted = { id, revision };
    // If the user has emptied the collection meanwhile ("Start over"), no other classifier can be fitted.
    if (revision === collection.current().revision || collection.classesInUse() < 2) return id;
  }
}

collection.onEdit(schedule);
