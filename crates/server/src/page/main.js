// Entry point of the page: handlers for buttons, drag and drop, keys and the clipboard, and the status line.
//
// The page shows a collection of labelled images (collection.js). New images are embedded on the server (embedding.js),
// the server audits the labels after every change (auditing.js), and then `show` draws everything again.

import * as storage from "./browser_storage.js";
import * as camera from "./camera.js";
import { chooseClass } from "./class_chooser.js";
import * as classSections from "./class_sections.js";
import * as collection from "./collection.js";
import { byId, element, setText } from "./dom.js";
import * as downloads from "./downloads.js";
import { makeTarget } from "./drop_target.js";
import { embedAgain, embedImages, onEmbedderChange } from "./embedding.js";
import { chosen, classesByFolder, separateImages, separateLoose } from "./file_input.js";
import * as filters from "./filters.js";
import * as history from "./history.js";
import * as itemDialog from "./item_dialog.js";
import * as listing from "./listing.js";
import { askName } from "./name_dialog.js";
import { predictFiles } from "./predictions.js";
import * as quarantineSection from "./quarantine_section.js";
import * as review from "./review.js";
import * as selection from "./selection.js";
import * as server from "./server.js";
import * as testSet from "./test_set.js";
import * as viewer from "./viewer.js";
import { conflicts, counted, imageProblems, imagesInWords, reviewInWords, summary, unreadable } from "./wording.js";

/** The most lines in a list of problems. */
const MOST_LINES = 200;
/** The most warnings of an audit that are shown. */
const MOST_WARNINGS = 20;
/** The files that were not added, as {name, reason}. */
const skipped = [];
/** The message in the status line instead of the summary; empty for none. */
let message = "";
/** The problem of the last audit that was shown. */
let shownProblem = null;
/** The revision of the collection whose plan was saved last. */
let savedRevision = null;

/** Shows an error. */
function showError(text) {
  byId("alert").replaceChildren(element("p", { textContent: text }));
}

/** Shows a message in the status line instead of the summary; an empty text shows the summary again. */
function say(text) {
  message = text;
  scheduleShow();
}

/** Shows the error of an action that fails. */
const guarded = (work) => async (...values) => {
  byId("alert").replaceChildren();
  try {
    await work(...values);
  } catch (error) {
    showError(error.message);
    say("");
  }
};

/** Adds files to the class `label`, or, if it is null, to the classes named by their folders. */
async function addFiles(files, label = null) {
  await started;
  // Leave out files that are not images, images next to the folders of the classes, and images that were added before.
  const { kept: images, skipped: notImages } = separateImages(files);
  const { kept: sorted, skipped: loose } = label === null ? separateLoose(images) : { kept: images, skipped: [] };
  const classes = new Map(label === null ? classesByFolder(images).map((name, index) => [images[index], name]) : []);
  const { kept, skipped: known } = collection.separateKnown(sorted);
  skipped.push(...notImages, ...loose, ...known);
  // Images in no folder get the class that the user chooses; if the user cancels, they are not added.
  let labelled = kept.map((entry) => ({ ...entry, label: label ?? classes.get(entry) }));
  if (labelled.some((entry) => !entry.label)) {
    const name = await chooseClass("Which class do these images belong to?", () => collection.current().classes);
    labelled = labelled.map((entry) => ({ ...entry, label: entry.label ?? name })).filter((entry) => entry.label);
    // The same files may have been dropped again and added meanwhile.
    const again = collection.separateKnown(labelled);
    skipped.push(...again.skipped);
    labelled = again.kept;
  }
  if (images.length === 0 && notImages.length > 0) showError("None of these files is an image.");
  if (labelled.length === 0) return scheduleShow();
  embedImages(await collection.add(labelled));
}

/** Asks for a class and moves images there. Resolves to false if the user cancels. */
async function chooseAndMove(ids) {
  const { classes, pictures } = collection.current();
  const moved = ids.map((id) => pictures.get(id));
  const labels = new Set(moved.map(({ label }) => label));
  const others = labels.size === 1 ? classes.filter((name) => !labels.has(name)) : classes;
  const label = await chooseClass(`Move ${imagesInWords(moved)} to`, () => others);
  if (!label) return false;
  selection.clear();
  collection.move(ids, label);
  return true;
}

/** Makes an action on a card act on the whole selection if the card is part of it. By keyboard (a click by keyboard has
 * `detail` 0), the focus moves to the next card, because the image may leave its class. */
const onCards = (work) => async (id, event) => {
  const next = event?.detail === 0 || event instanceof KeyboardEvent ? classSections.neighbourOf(id) : null;
  const ids = selection.withSelected(id);
  if (await work(ids) === false) return;
  if (ids.length > 1) selection.clear();
  if (next) {
    show();
    classSections.focusCard(next);
  }
};

/** Opens the viewer at an image; with Ctrl or Shift, a click selects instead. */
function openCard(id, event) {
  if (event.ctrlKey || event.metaKey) return selection.toggle(id);
  if (event.shiftKey) return selection.extendTo(id);
  viewer.open(id, listing.shownIds(), (last) => classSections.focusCard(collection.current().pictures.has(last) ? last : id));
}

/** What the cards of images and the menus of classes do. */
const actions = {
  open: openCard,
  select: (id, event) => (event.shiftKey ? selection.extendTo(id) : selection.toggle(id)),
  accept: onCards(collection.accept),
  keep: onCards(collection.keep),
  quarantine: onCards(collection.quarantine),
  remove: onCards(collection.remove),
  move: onCards(chooseAndMove),
  chooseFiles: guarded(async (input, label) => { const files = chosen(input); input.value = ""; await addFiles(files, label); }),
  record: guarded(async (label) => { const frames = await camera.recordFrames(label); await addFiles(frames.map((file) => ({ file, path: file.name })), label); }),
  renameClass: async (name) => {
    const note = (to) => (to !== name && collection.current().classes.includes(to) ? `The class ${to} exists: the two classes will be merged.` : "");
    const to = await askName(`Rename ${name}`, name, note);
    if (to) collection.renameClass(name, to);
  },
  mergeClass: async (name) => {
    const into = await chooseClass(`Merge ${name} into`, () => collection.current().classes.filter((other) => other !== name), false);
    if (into) collection.renameClass(name, into);
  },
  selectClass: (name) => listing.current().find((section) => section.name === name).shown.forEach(({ id }) => selection.has(id) || selection.toggle(id)),
  removeClass: collection.removeClass,
  makeTarget: (section, label) => makeTarget(section, guarded((files) => addFiles(files, label)), (ids) => { selection.clear(); collection.move(ids, label); }),
};

/** The text of the status line: what the page is doing, what the user can do next, or the summary of the audit. */
function status(state) {
  if (message) return message;
  if (state.pictures.size === 0) return state.classes.length > 0 ? "Add images to the classes." : "";
  if (state.waiting > 0) return `Embedding images: ${state.total - state.waiting} of ${state.total}`;
  if (collection.classesInUse() < 2) return "Add images of a second class: labels are checked by comparing classes.";
  if (state.auditing) return "Checking labels";
  return state.found ? summary(state.found) : "";
}

/** Updates the page to the state of the collection. */
function show() {
  const state = collection.current();
  listing.update();
  selection.update();
  filters.update(state, listing.current().reduce((sum, { shown }) => sum + shown.length, 0));
  showTools(state);
  classSections.draw(actions);
  quarantineSection.draw((id) => viewer.open(id, collection.inQuarantine().map((picture) => picture.id), () => byId("quarantine-cards").querySelector("button")?.focus()));
  setText(byId("status"), status(state));
  showProgress(state);
  showProblem(state.problem);
  showLists(state);
  showDownloads();
  testSet.update(state);
}

/** Shows the problem of the last audit if it has changed: the same text would be read out again. */
function showProblem(problem) {
  if (problem === shownProblem) return;
  if (problem) showError(problem);
  else if (byId("alert").textContent === shownProblem) byId("alert").replaceChildren();
  shownProblem = problem;
}

/** Shows the tools and parts of the page that can be used now. */
function showTools(state) {
  const hasClasses = state.classes.length > 0;
  byId("intake").classList.toggle("empty", !hasClasses);
  byId("invitation").hidden = hasClasses;
  byId("start-over").hidden = !hasClasses;
  byId("toolbar").hidden = !hasClasses && !history.nextUndo() && !history.nextRedo();
  byId("try").hidden = byId("test").hidden = byId("take").hidden = !state.found;
  const changeCount = collection.withAction("relabel", "quarantine").length;
  byId("accept-all").hidden = changeCount === 0;
  setText(byId("accept-all"), changeCount === 1 ? "Make the planned change" : `Make all ${changeCount} planned changes`);
  const toReview = reviewInWords(collection.withAction("review").length, changeCount);
  byId("review").hidden = !state.found || toReview === "";
  setText(byId("review"), toReview);
  byId("certainty-choice").hidden = !hasClasses;
  if (document.activeElement !== byId("certainty")) byId("certainty").value = state.certainty;
  for (const [id, verb, words] of [["undo", "Undo", history.nextUndo()], ["redo", "Redo", history.nextRedo()]]) {
    byId(id).disabled = words === null;
    byId(id).title = words === null ? "" : `${verb}: ${words}`;
    byId(id).setAttribute("aria-label", words === null ? verb : `${verb}: ${words}`);
  }
}

function showProgress(state) {
  const progress = byId("progress");
  progress.hidden = state.waiting === 0;
  progress.max = state.total || 1;
  progress.value = state.total - state.waiting;
}

/** Shows the warnings of the audit, and the lists of skipped files, unreadable images, conflicts and poor images. */
function showLists(state) {
  const warnings = state.found?.warnings ?? [];
  byId("warnings").replaceChildren(...warnings.slice(0, MOST_WARNINGS).map((warning) => element("p", { textContent: `Warning: ${warning}.` })));
  showLines("skipped", `${counted(skipped.length, "file was", "files were")} skipped`, skipped.map(({ name, reason }) => `${name}: ${reason}`));
  const unread = unreadable(collection.pictures());
  showLines("unreadable", `${counted(unread.length, "image")} cannot be read`, unread);
  const same = state.found ? conflicts(state.found) : [];
  showLines("conflicts", `${counted(same.length, "label conflict")}: the same item with different labels`, same);
  const poor = state.found ? imageProblems(state.found) : [];
  showLines("image-problems", counted(poor.length, "image problem"), poor);
}

/** Shows lines in the `details` element with this id, below its title; hides it if there are no lines. */
function showLines(id, title, lines) {
  byId(id).hidden = lines.length === 0;
  const shown = lines.slice(0, MOST_LINES);
  if (lines.length > MOST_LINES) shown.push(`and ${lines.length - MOST_LINES} more`);
  setText(byId(id).querySelector("summary"), title);
  if (byId(id).querySelector("ul").dataset.content === shown.join("\n")) return;
  byId(id).querySelector("ul").dataset.content = shown.join("\n");
  byId(id).querySelector("ul").replaceChildren(...shown.map((line) => element("li", { textContent: line })));
}

/** Says that the files of the user are unchanged, and how to apply the changes: next to the status line if the user has
 * changed labels, and below the button for the plan. `changes` are those of the plan, including the ones that only the
 * audit suggests. There is no plan without images in folders. */
function showUnchanged(changes) {
  const inPlan = downloads.plannable();
  const outsideCount = collection.pictures().length - inPlan.length;
  const outside = outsideCount > 0 ? `${counted(outsideCount, "image without a folder is", "images without a folder are")} not in the plan.` : "";
  byId("take-plan").hidden = inPlan.length === 0;
  if (inPlan.length === 0) {
    byId("unchanged").hidden = true;
    return setText(byId("take-note"), outside);
  }
  const changedCount = inPlan.filter((picture) => picture.quarantined || picture.label !== picture.originalLabel).length;
  const command = element("code", { textContent: downloads.repairCommand() });
  byId("unchanged").hidden = changedCount === 0;
  replaceContent(byId("unchanged"), `${counted(changedCount, "change")} on this page only. Your folder is not changed yet: `, element("a", { href: "#take", textContent: "save the plan" }), " and run ", command);
  const nextStep = savedRevision === collection.current().revision ? "trueshot-plan.jsonl is saved. Your folder is not changed yet: run " : "Your folder is not changed yet: save the plan and run ";
  const options = changes.length > 0 ? " It lists the changes; with --into DIR it writes a repaired copy, with --in-place it moves the files." : "";
  replaceContent(byId("take-note"), nextStep, command.cloneNode(true), `.${options}${outside && ` ${outside}`}`);
}

/** Replaces the content of an element unless its text is the same, which would be read out again. */
function replaceContent(target, ...content) {
  const made = element("div", {}, ...content);
  if (made.textContent !== target.textContent) target.replaceChildren(...made.childNodes);
}

/** Updates the buttons of the downloads, which are there after the first audit. */
function showDownloads() {
  if (byId("take").hidden) {
    byId("unchanged").hidden = true;
    return;
  }
  byId("take-confirmed").hidden = !downloads.plannable().some((picture) => picture.confirmed);
  const { changes, review: toReview } = downloads.planned();
  setText(byId("take-plan"), `Plan: ${counted(changes.length, "change")}, ${toReview.length} to review`);
  showUnchanged(changes);
}

let isShowScheduled = false;

/** Updates the page when the running handlers have finished, once for all their changes. */
function scheduleShow() {
  if (isShowScheduled) return;
  isShowScheduled = true;
  // Not requestAnimationFrame, which browsers do not call for background tabs.
  queueMicrotask(() => { isShowScheduled = false; show(); });
}

const predict = guarded((files) => predictFiles(files.filter((file) => file.size > 0), say));
const addTestFiles = guarded((files) => testSet.addFiles(files, say));

const undo = () => review.undo() || collection.undo();
const redo = () => review.redo() || collection.redo();

function setUpDownloads() {
  byId("take-plan").onclick = guarded(() => { downloads.savePlan(); savedRevision = collection.current().revision; scheduleShow(); });
  byId("take-confirmed").onclick = guarded(downloads.saveConfirmed);
  byId("take-json").onclick = guarded(downloads.saveJson);
  byId("take-html").onclick = guarded(downloads.saveHtml);
  byId("take-classifier").onclick = guarded(downloads.saveClassifier);
}

function setUpTools() {
  byId("new-class").onclick = async () => { const name = await askName("New class"); if (name) collection.addClass(name); };
  byId("accept-all").onclick = () => collection.accept(collection.withAction("relabel", "quarantine"));
  byId("review").onclick = () => review.start();
  byId("undo").onclick = undo;
  byId("redo").onclick = redo;
  byId("certainty").onchange = (event) => {
    const certainty = event.target.valueAsNumber;
    if (certainty >= 0.5 && certainty <= 1) collection.setCertainty(certainty);
    else event.target.value = collection.current().certainty;
  };
  byId("start-over").onclick = () => {
    if (!confirm("Remove all images from this page? This cannot be undone.")) return;
    skipped.length = 0;
    filters.reset();
    testSet.clear();
    collection.clear();
  };
  byId("read-again").onclick = embedAgain;
  byId("remove-unreadable").onclick = () => collection.remove(collection.pictures().filter((picture) => picture.problem).map(({ id }) => id));
  byId("test-again").onclick = guarded(() => testSet.measure(say));
  byId("test-clear").onclick = () => { testSet.clear(); scheduleShow(); };
  byId("camera").hidden = !camera.isAvailable();
  byId("camera").onclick = guarded(async () => { const files = await camera.takePhoto(); if (files.length > 0) await predict(files); });
}

function setUpFiles() {
  document.querySelectorAll("[data-opens]").forEach((opener) => { opener.onclick = () => byId(opener.dataset.opens).click(); });
  const onFiles = (id, use) => { byId(id).onchange = (event) => { const files = chosen(event.target); event.target.value = ""; use(files); }; };
  onFiles("folder-input", guarded((files) => addFiles(files)));
  onFiles("test-input", addTestFiles);
  onFiles("query-input", (files) => predict(files.map(({ file }) => file)));
  makeTarget(byId("intake"), guarded((files) => addFiles(files)));
  makeTarget(byId("try"), (files) => predict(files.map(({ file }) => file)));
  makeTarget(byId("test"), addTestFiles);
  // Without this, the browser would open a file that is dropped outside the other targets.
  makeTarget(document.body, guarded((files) => addFiles(files)));
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
    if (files.length > 0 && !byId("try").hidden) { event.preventDefault(); predict(files); }
  });
}

/** Keys that work everywhere: Ctrl-Z, Ctrl-Shift-Z and Ctrl-Y, / for the search, Esc to clear the selection. */
function pressGlobal(event) {
  const isTyping = event.target.matches("input:not([type=checkbox])");
  const key = event.key.toLowerCase();
  const withControl = event.ctrlKey || event.metaKey;
  if (isTyping || (document.querySelector("dialog[open]") && !byId("item-dialog").open)) return;
  if (withControl && key === "z") (event.shiftKey ? redo : undo)();
  else if (withControl && key === "y") redo();
  else if (document.querySelector("dialog[open]") || withControl) return;
  else if (key === "/") byId("search").focus();
  else if (key === "escape") selection.clear();
  else return;
  event.preventDefault();
}

/** Shows that this tab waits for another one, instead of the collection; or the collection. */
function showWaiting(isWaiting) {
  setText(byId("other-tab"), isWaiting ? "This page is open in another tab. Close that tab to work here." : "");
  document.querySelector("main").classList.toggle("waiting", isWaiting);
}

/** Loads the collection of earlier visits, when no other tab works on it. */
async function start() {
  await storage.becomeOnlyTab(() => showWaiting(true));
  showWaiting(false);
  const { version, embedder } = await server.about();
  const showAbout = (network) => { byId("about").textContent = `trueshot ${version}, ${network}`; };
  showAbout(embedder);
  onEmbedderChange((network) => {
    showAbout(network);
    showError(`The server now uses the network ${network}: all images are embedded again.`);
  });
  embedImages(await collection.recall(embedder));
}

setUpTools();
setUpDownloads();
setUpFiles();
selection.setUp(chooseAndMove);
document.addEventListener("keydown", pressGlobal);
collection.subscribe(scheduleShow);
storage.onFailure(() => setText(byId("not-stored"), "This browser does not store the images: save the plan before you close the page."));
collection.subscribe(itemDialog.update);
filters.onChange(scheduleShow);
selection.onChange(scheduleShow);
/** The promise that the stored collection is loaded. Files are added after that. */
const started = start();
guarded(() => started)();
