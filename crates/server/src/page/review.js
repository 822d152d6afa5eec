// The review: steps through the items with the action "review", then through the planned changes. Every decision starts
// an audit; items that have become certain are left out.

import * as collection from "./collection.js";
import { byId } from "./dom.js";
import * as dialog from "./item_dialog.js";
import { counted } from "./wording.js";

/** The id of the shown image; null after the last one. */
let current = null;
/** The steps so far: {id, decided}; `decided` is false if the user chose Later. */
let steps = [];
let isOpen = false;

/** Whether the review has passed an item. */
const passed = (id) => steps.some((step) => step.id === id);
/** The items that are still to be shown: those to review first, then the planned changes. */
const remaining = () => [...collection.withAction("review"), ...collection.withAction("relabel", "quarantine")].filter((id) => !passed(id));

export function start() {
  isOpen = true;
  steps = [];
  [current] = remaining();
  dialog.open(controller);
}

/** Shows the next item. */
function next() {
  [current] = remaining();
  dialog.update();
  dialog.focusDefault();
}

/** Makes a change of the shown item and goes on. */
function decide(work) {
  steps.push({ id: current, decided: true });
  work(current);
  next();
}

/** Goes on without a decision. */
function putOff() {
  steps.push({ id: current, decided: false });
  next();
}

/** Goes one step back and undoes its decision. */
function back() {
  const step = steps.pop();
  if (!step) return;
  if (step.decided) collection.undo();
  current = step.id;
  dialog.update();
  dialog.focusDefault();
}

/** Undo and redo while the review is open. They return whether the review has handled the key or button. */
export function undo() {
  if (isOpen) back();
  return isOpen;
}

export function redo() {
  if (!isOpen) return false;
  const [id] = collection.redo() ?? [];
  if (!id) return true;
  // The item may have been put off since.
  steps = [...steps.filter((step) => step.id !== id), { id, decided: true }];
  next();
  return true;
}

function progress() {
  // The shown item stays until the user decides, even if the audit has become certain.
  const left = remaining().filter((id) => id !== current).length + (current ? 1 : 0);
  return current ? `${steps.length + 1} of ${steps.length + left}` : "";
}

/** Called when no image is shown: goes on if an audit has found new items to review, otherwise shows what was done. */
function showEnd() {
  [current] = remaining();
  if (current) {
    dialog.update();
    return dialog.focusDefault();
  }
  const waiting = collection.current().auditing;
  const [decided, later] = [true, false].map((kind) => steps.filter((step) => step.decided === kind).length);
  const made = `${counted(decided, "decision")} made${later > 0 ? `, ${later} put off` : ""}.`;
  byId("item-done").textContent = waiting ? "Checking labels" : `${later === 0 ? "Nothing is left to review. " : ""}${made}`;
}

const controller = {
  title: "Review",
  id: () => current,
  verdict: () => collection.verdictOf(current),
  progress,
  back: { text: "Back", key: "←", run: back, enabled: () => steps.length > 0 },
  forward: { text: "Later", key: "→", run: putOff, enabled: () => Boolean(current) },
  decide,
  end: showEnd,
  closed: () => { isOpen = false; current = null; byId("review").focus(); },
};
