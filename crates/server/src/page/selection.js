// The selected images, and the bar with the actions for all of them.

import * as collection from "./collection.js";
import { byId, setText } from "./dom.js";
import * as listing from "./listing.js";

const selected = new Set();
const listeners = new Set();
/** The image that a range begins at. */
let anchor = null;

export const onChange = (listener) => listeners.add(listener);
export const has = (id) => selected.has(id);
export const ids = () => [...selected];
/** The selected images if this one is among them; otherwise the image alone. */
export const withSelected = (id) => (selected.has(id) ? ids() : [id]);

export function toggle(id) {
  if (!selected.delete(id)) selected.add(id);
  anchor = id;
  changed();
}

/** Selects everything from the last toggled image to this one, in the order of the page. */
export function extendTo(id) {
  const order = listing.shownIds();
  const [from, to] = [order.indexOf(anchor), order.indexOf(id)];
  if (from < 0) return toggle(id);
  order.slice(Math.min(from, to), Math.max(from, to) + 1).forEach((between) => selected.add(between));
  changed();
}

export function selectAll() {
  listing.shownIds().forEach((id) => selected.add(id));
  changed();
}

export function clear() {
  selected.clear();
  changed();
}

function changed() {
  listeners.forEach((listener) => listener());
}

/** Forgets images that are gone, and shows the bar if anything is selected. */
export function update() {
  const { pictures } = collection.current();
  for (const id of selected) if (!pictures.has(id) || pictures.get(id).quarantined) selected.delete(id);
  byId("selection").hidden = selected.size === 0;
  document.body.classList.toggle("selecting", selected.size > 0);
  setText(byId("selection-count"), `${selected.size} selected`);
}

/** Sets up the bar; `choose` asks for a class and moves the images there. */
export function setUp(choose) {
  const withAll = (work) => () => { const all = ids(); clear(); work(all); };
  byId("selection-keep").onclick = withAll(collection.keep);
  byId("selection-quarantine").onclick = withAll(collection.quarantine);
  byId("selection-remove").onclick = withAll(collection.remove);
  byId("selection-move").onclick = () => choose(ids());
  byId("selection-all").onclick = selectAll;
  byId("selection-clear").onclick = clear;
}
