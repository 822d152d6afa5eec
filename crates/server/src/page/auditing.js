// Keeps the verdicts of the collection up to date, and the classifier that is fitted on it.

import * as collection from "./collection.js";
import * as server from "./server.js";

/** The delay before an audit in ms, so that changes in quick succession cause one audit. */
const DELAY_MS = 120;
const LONGEST_ITEM_NAME = 120;

let timer = null;
let request = null;
/** The images of the last audit by their item names. */
let named = new Map();

/** The image with this name in the last audit. */
export const pictureNamed = (item) => named.get(item) ?? null;

/** The support set as a request body, and its images by item name, in the order of the rows. */
function support() {
  const byName = new Map();
  for (const picture of collection.audited()) {
    const name = picture.path.slice(-LONGEST_ITEM_NAME);
    byName.set(byName.has(name) ? `${name} (${byName.size + 1})` : name, picture);
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

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(audit, DELAY_MS);
}

async function audit() {
  const state = collection.current();
  request?.abort();
  if (state.waiting > 0) return;
  if (collection.classesInUse() < 2) {
    Object.assign(state, { verdicts: new Map(), found: null, auditing: false, problem: null });
    return collection.notify();
  }
  const { byName, body } = support();
  const current = request = new AbortController();
  state.auditing = true;
  collection.notify();
  try {
    const found = await server.audit(body, state.certainty, current.signal);
    if (current !== request) return;
    named = byName;
    state.verdicts = new Map([...byName.values()].map((picture, index) => [picture.id, found.items[index]]));
    Object.assign(state, { found, problem: null });
  } catch (error) {
    if (error.name === "AbortError") return;
    Object.assign(state, { problem: error.message, verdicts: new Map(), found: null });
  }
  state.auditing = false;
  collection.notify();
}

/** The id of a classifier for the current labels, fitted when it is first needed. */
export async function classifier() {
  const state = collection.current();
  if (state.classifier && await server.isKept(state.classifier)) return state.classifier;
  const { revision } = state;
  const { id } = await server.fit(support().body);
  if (revision === state.revision) {
    state.classifier = id;
    collection.saveNotes();
  }
  return id;
}

collection.onEdit(schedule);
