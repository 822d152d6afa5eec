// The review: steps through the items that the audit leaves to the user, then through the planned changes. Every
// decision starts an audit, so items that it makes certain are no longer asked about.

import * as collection from "./collection.js";
import { byId } from "./dom.js";
import * as dialog from "./item_dialog.js";
import { counted } from "./wording.js";

/** The shown image, and the steps so far: {id, decided (false if skipped)}. */
let current = null;
let steps = [];
let isOpen = false;

const passed = (id) => steps.some((step) => step.id === id);
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

function decide(work) {
  steps.push({ id: current, decided: true });
  work(current);
  next();
}

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

/** Undo and Redo while the review is open. Return whether the review has handled it. */
export function undo() {
  if (isOpen) back();
  return isOpen;
}

export function redo() {
  if (!isOpen) return false;
  const [id] = collection.redo() ?? [];
  if (!id) return true;
  steps.push({ id, decided: true });
  next();
  return true;
}

function progress() {
  // The shown item stays until the user decides, even if the audit has become certain.
  const left = remaining().filter((id) => id !== current).length + (current ? 1 : 0);
  return current ? `${steps.length + 1} of ${steps.length + left}` : "";
}

/** What is shown after the last item. */
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
