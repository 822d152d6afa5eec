// The filter bar: which images are shown, by the action of the audit and by name, as in the reports of the command
// line.

import * as collection from "./collection.js";
import { byId, setText } from "./dom.js";
import { ACTIONS } from "./wording.js";

/** Which action or kind of image is shown, and the text of the search in lower case. */
const filter = { show: "all", text: "" };
const listeners = new Set();

export const onChange = (listener) => listeners.add(listener);
export const isActive = () => filter.show !== "all" || filter.text !== "";

/** Whether the filter lets an image through. */
export function passes(picture) {
  const verdict = collection.verdictOf(picture.id);
  return hasKind(picture, verdict) && (filter.text === "" || searched(picture, verdict).includes(filter.text));
}

function hasKind(picture, verdict) {
  switch (filter.show) {
    case "all": return true;
    case "suspect": return verdict?.p_wrong >= 0.5 && !picture.confirmed;
    case "unreadable": return Boolean(picture.problem);
    default: return verdict?.action === filter.show;
  }
}

const searched = (picture, verdict) => `${picture.path} ${picture.label} ${verdict?.suggested ?? ""}`.toLowerCase();

export function reset() {
  set("all", "");
  byId("search").value = "";
}

function set(show, text) {
  Object.assign(filter, { show, text });
  listeners.forEach((listener) => listener());
}

/** Updates the counts of the filter bar. `shown` is the number of images that pass. */
export function update(state, shown) {
  const all = collection.pictures().filter((picture) => !picture.quarantined);
  const counts = { ...state.found?.counts, all: all.length, unreadable: all.filter((picture) => picture.problem).length };
  byId("filters").hidden = state.pictures.size === 0;
  for (const choice of byId("filters").querySelectorAll("[data-show]")) {
    const { show } = choice.dataset;
    choice.setAttribute("aria-pressed", String(filter.show === show));
    choice.hidden = show !== "all" && filter.show !== show && !counts[show];
    setText(choice, `${ACTIONS.includes(show) ? `to ${show}` : show} (${counts[show] ?? 0})`);
  }
  setText(byId("shown"), isActive() ? `${shown} of ${counts.all} shown` : "");
}

byId("filters").onclick = (event) => { if (event.target.dataset.show) set(event.target.dataset.show, filter.text); };
byId("search").oninput = (event) => set(filter.show, event.target.value.trim().toLowerCase());
