// Entry point of the page: handlers for buttons, drag and drop and the clipboard, and the status line.

import { ask, setUpCamera } from "./asking.js";
import * as collection from "./collection.js";
import * as downloads from "./downloads.js";
import { conflicts, counted, draw, element, imageProblems, summary as counts } from "./drawing.js";
import { chosen, dropped, folderOf, sorted } from "./receiving.js";
import * as reviewing from "./reviewing.js";
import * as server from "./server.js";

const byId = (id) => document.getElementById(id);
const skipped = [];
let spoken = "";

function complain(message) {
  byId("alert").replaceChildren(element("p", { textContent: message }));
}

/** Shows a message in the status line instead of the summary; an empty message shows the summary again. */
function say(message) {
  spoken = message;
  show(collection.look());
}

const guarded = (work) => async (...given) => {
  byId("alert").replaceChildren();
  try {
    await work(...given);
  } catch (error) {
    complain(error.message);
    say("");
  }
};

function askName(title, value = "") {
  const [dialog, input] = [byId("name-dialog"), byId("name-input")];
  byId("name-title").textContent = title;
  input.value = value;
  return new Promise((done) => {
    let answer = null;
    const end = (yes) => { answer = yes ? input.value.trim() : null; dialog.close(); };
    dialog.querySelectorAll("button").forEach((button) => { button.onclick = () => end(button.value === "yes"); });
    input.onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); end(true); } };
    dialog.onclose = () => done(answer || null);
    dialog.showModal();
    input.select();
  });
}

/** Adds files to the class `place`, or, if it is null, to the classes named by their folders. */
async function take(files, place = null) {
  const { kept, skipped: left } = sorted(files);
  skipped.push(...left);
  let named = kept.map((entry) => ({ ...entry, place: place ?? folderOf(entry.path) }));
  if (named.some((entry) => !entry.place)) {
    const name = await askName("Which class do these images belong to?");
    named = named.map((entry) => ({ ...entry, place: entry.place ?? name })).filter((entry) => entry.place);
  }
  if (named.length === 0 && left.length === 0) return;
  if (named.length === 0) complain("None of these files is an image.");
  await collection.add(named);
}

const actions = {
  accept: (id) => { collection.accept([id]); },
  keep: (id) => collection.confirm(id),
  setAside: (id) => collection.setAside(id),
  putBack: (id) => collection.putBack(id),
  remove: (id) => collection.remove([id]),
  move: (id, place) => place && collection.move(id, place),
  choose: guarded(async (input, place) => { const files = chosen(input); input.value = ""; await take(files, place); }),
  rename: async (name) => { const to = await askName(`Rename ${name}`, name); if (to) collection.renameClass(name, to); },
  removeClass: (name) => { if (collection.inClass(name).length === 0 || confirm(`Remove the class ${name} and its images from this page?`)) collection.removeClass(name); },
  target: (section, place) => target(section, (files) => take(files, place), (id) => collection.move(id, place)),
};

/** Makes an element a drop target for files and, if `takeCard` is given, for cards. */
function target(holder, takeFiles, takeCard = null) {
  const wants = (event) => event.dataTransfer.types.includes("Files") || (takeCard && event.dataTransfer.types.includes("application/x-trueshot"));
  holder.addEventListener("dragover", (event) => { if (wants(event)) { event.preventDefault(); event.stopPropagation(); holder.classList.add("over"); } });
  holder.addEventListener("dragleave", (event) => { if (!holder.contains(event.relatedTarget)) holder.classList.remove("over"); });
  holder.addEventListener("drop", guarded(async (event) => {
    if (!wants(event)) return;
    event.preventDefault();
    event.stopPropagation();
    holder.classList.remove("over");
    const id = event.dataTransfer.getData("application/x-trueshot");
    if (id && takeCard) takeCard(id);
    else await takeFiles(await dropped(event.dataTransfer));
  }));
}

function summary(state) {
  const pictures = [...state.pictures.values()];
  if (spoken) return spoken;
  if (pictures.length === 0) return state.classes.length > 0 ? "Add images to the classes." : "";
  if (state.waiting > 0) return `Embedding images: ${state.total - state.waiting} of ${state.total}`;
  if (collection.classesInUse() < 2) return "Add images of a second class: labels are checked by comparing classes.";
  if (state.looking) return "Checking labels";
  if (!state.found) return "";
  return counts(state.found);
}

function show(state) {
  draw(state, actions);
  const text = summary(state);
  if (byId("status").textContent !== text) byId("status").textContent = text;
  const progress = byId("progress");
  progress.hidden = state.waiting === 0;
  progress.max = state.total || 1;
  progress.value = state.total - state.waiting;
  if (state.problem) complain(state.problem);
  const any = state.classes.length > 0;
  byId("intake").classList.toggle("empty", !any);
  byId("invitation").hidden = any;
  byId("start-over").hidden = !any;
  byId("try").hidden = byId("take").hidden = !state.found;
  const changes = collection.withAction("relabel", "quarantine").length;
  byId("accept-all").hidden = changes === 0;
  byId("accept-all").textContent = changes === 1 ? "Make the planned change" : `Make all ${changes} planned changes`;
  byId("review").hidden = !state.found || (state.found.counts.review === 0 && changes === 0);
  byId("review").textContent = state.found?.counts.review > 0 ? `Review ${counted(state.found.counts.review, "label")}` : `Check ${counted(changes, "planned change")}`;
  byId("certainty-choice").hidden = !any;
  if (document.activeElement !== byId("certainty")) byId("certainty").value = state.certainty;
  byId("take-confirmed").hidden = ![...state.pictures.values()].some((picture) => picture.confirmed);
  const warnings = state.found?.warnings ?? [];
  byId("warnings").replaceChildren(...warnings.slice(0, 20).map((warning) => element("p", { textContent: `Warning: ${warning}.` })));
  if (!byId("take").hidden) {
    const { changes: made, review } = downloads.planned();
    byId("take-plan").textContent = `Plan: ${counted(made.length, "change")}, ${review.length} to review`;
  }
  const skippedFiles = skipped.map(({ name, reason }) => `${name}: ${reason}`);
  list("skipped", `${counted(skipped.length, "file was", "files were")} skipped`, skippedFiles);
  const same = state.found ? conflicts(state.found) : [];
  list("conflicts", `${counted(same.length, "label conflict")}: the same item with different labels`, same);
  const poor = state.found ? imageProblems(state.found, [...state.pictures.values()]) : [];
  list("image-problems", counted(poor.length, "image problem"), poor);
}

/** Shows lines under a summary; nothing if there are no lines. */
function list(id, summary, lines) {
  byId(id).hidden = lines.length === 0;
  byId(id).querySelector("summary").textContent = summary;
  byId(id).querySelector("ul").replaceChildren(...lines.slice(0, 200).map((line) => element("li", { textContent: line })));
}

const question = guarded((files) => ask(files.filter((file) => file.size > 0), say));

function setUp() {
  document.querySelectorAll("[data-opens]").forEach((button) => { button.onclick = () => byId(button.dataset.opens).click(); });
  byId("folder-input").onchange = guarded(async (event) => { const files = chosen(event.target); event.target.value = ""; await take(files); });
  byId("query-input").onchange = (event) => { const files = [...event.target.files]; event.target.value = ""; question(files); };
  byId("new-class").onclick = async () => { const name = await askName("New class"); if (name) collection.addClass(name); };
  byId("accept-all").onclick = () => collection.accept(collection.withAction("relabel", "quarantine"));
  byId("review").onclick = () => reviewing.open();
  byId("certainty").onchange = (event) => {
    const given = event.target.valueAsNumber;
    if (given >= 0.5 && given <= 1) collection.setCertainty(given);
    else event.target.value = collection.look().certainty;
  };
  byId("start-over").onclick = () => { if (confirm("Remove all images from this page?")) { skipped.length = 0; collection.clear(); } };
  byId("take-plan").onclick = guarded(downloads.savePlan);
  byId("take-confirmed").onclick = guarded(downloads.saveConfirmed);
  byId("take-json").onclick = guarded(downloads.saveJson);
  byId("take-html").onclick = guarded(downloads.saveHtml);
  byId("take-classifier").onclick = guarded(downloads.saveClassifier);
  target(byId("intake"), (files) => take(files));
  target(byId("try"), (files) => question(files.map(({ file }) => file)));
  // Without this, the browser would open a file that is dropped outside the other targets.
  target(document.body, (files) => take(files));
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
    if (files.length > 0 && !byId("try").hidden) { event.preventDefault(); question(files); }
  });
  setUpCamera(question, complain);
}

setUp();
collection.subscribe(show);
collection.subscribe(reviewing.update);
guarded(async () => {
  const { version, embedder } = await server.about();
  byId("about").textContent = `trueshot ${version}, ${embedder}`;
  await collection.recall(embedder);
})();
