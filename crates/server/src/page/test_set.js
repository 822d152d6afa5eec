// The test set: labelled images that the classifier is not fitted on. They stay in memory until they are removed or the
// page is closed.

import { classifier } from "./auditing.js";
import * as collection from "./collection.js";
import { breakable, button, byId, element, setText } from "./dom.js";
import { embedOthers } from "./embedding.js";
import { evaluate, predictedClass } from "./evaluation.js";
import { classesByFolder, fileKey, separateImages } from "./file_input.js";
import * as server from "./server.js";
import { className, counted, percent } from "./wording.js";

/** The most images that are shown for a cell of the confusion matrix. */
const MAX_SHOWN = 100;

/** The test images: {name, path, label, blob, url, embedder, row or problem}, after a measurement also {answer,
 * predicted}. */
let images = [];
/** Grows when the test set is removed, so that nothing is added or measured that was begun before. */
let generation = 0;
/** The revision of the collection that the results are for. */
let measuredRevision = null;
/** The share of right predictions in the measurement before the last one, and in the last one; null without one. */
let accuracyBefore = null;
let accuracy = null;

/** Adds files of a folder as test images, each with its folder as its class, and measures the classifier on all of them. */
export async function addFiles(files, say) {
  const { kept } = separateImages(files);
  const classes = classesByFolder(kept);
  const labelled = kept.map(({ file, path }, index) => ({ name: file.name, path, label: classes[index], blob: file })).filter(({ label }) => label !== null);
  if (labelled.length === 0) throw new Error("The test set needs a folder whose sub-folders are the classes. No image in such a folder was found.");
  // Images that could not be read before are tried again.
  const known = new Set(images.filter(({ row }) => row).map(keyOf));
  const added = labelled.filter((image) => !known.has(keyOf(image)));
  const begun = generation;
  await embedOthers(added, (done) => say(`Embedding test images: ${done} of ${added.length}`));
  if (begun !== generation) return say("");
  if (added.length > 0) {
    replaceImages(added);
    // An accuracy on other images is not comparable.
    accuracy = null;
  }
  await measure(say);
}

const keyOf = ({ path, blob }) => fileKey(path, blob);

/** Adds embedded test images. They replace those of the same files, which could not be read or were dropped twice. */
function replaceImages(added) {
  const keys = new Set(added.map(keyOf));
  const isReplaced = (image) => keys.has(keyOf(image));
  images.filter(isReplaced).forEach(({ url }) => URL.revokeObjectURL(url));
  added.forEach((image) => { image.url = URL.createObjectURL(image.blob); });
  images = [...images.filter((image) => !isReplaced(image)), ...added];
}

/** Measures the classifier for the current labels. */
export async function measure(say) {
  const begun = generation;
  // The images are embedded already, unless the server has changed its network since.
  await embedOthers(images, (done) => say(`Embedding test images: ${done} of ${images.length}`));
  say("Predicting the classes of the test images");
  const id = await classifier();
  const { revision } = collection.current();
  const readable = images.filter(({ row }) => row);
  const { classes, predictions } = await server.predict(id, readable.map(({ row }) => row));
  // The test set was removed, or images were replaced, in the meantime.
  if (begun !== generation || readable.some((image) => !images.includes(image))) return say("");
  predictions.forEach((prediction, index) => Object.assign(readable[index], { answer: prediction, predicted: predictedClass(prediction) }));
  const result = evaluate(readable, classes);
  [accuracyBefore, accuracy, measuredRevision] = [accuracy, result.images > 0 ? result.right / result.images : null, revision];
  show(result);
  say("");
}

/** Removes the test set. */
export function clear() {
  for (const { url } of images) URL.revokeObjectURL(url);
  [images, measuredRevision, accuracy, accuracyBefore] = [[], null, null, null];
  generation += 1;
  byId("test-result").hidden = true;
}

/** Offers to measure again if the labels have changed, and to remove the test set. */
export function update(state) {
  byId("test-again").hidden = measuredRevision === null || measuredRevision === state.revision;
  byId("test-clear").hidden = images.length === 0;
}

/** The result in a few sentences. */
function summary({ images: count, right, refused, others, othersRefused }) {
  const before = accuracyBefore !== null && accuracyBefore !== accuracy ? ` Before: ${percent(accuracyBefore)}.` : "";
  const main = count > 0 ? `Accuracy: ${percent(right / count)} (${right} of ${count}).${before}` : "No test image belongs to one of the classes.";
  const none = refused > 0 ? ` ${counted(refused, "image was", "images were")} predicted as none of these.` : "";
  const otherClasses = others > 0 ? ` ${counted(others, "image", "images")} of other classes: ${othersRefused} predicted as none of these.` : "";
  // Only readable images were evaluated.
  const unread = images.length - count - others;
  return `${main}${none}${otherClasses}${unread > 0 ? ` ${counted(unread, "image")} cannot be read.` : ""}`;
}

/** Shows the result of `evaluate`: summary, figures per class, confusion matrix. */
function show(result) {
  setText(byId("test-summary"), summary(result));
  byId("test-classes").replaceChildren(
    row("th", "class", "images", "right", "recall", "precision"),
    ...result.perClass.map((figures) => row("td", figures.name, figures.images, figures.right, ...[figures.recall, figures.precision].map((share) => (share === null ? "–" : percent(share))))));
  showMatrix(result.matrix);
  byId("test-cell").hidden = true;
  byId("test-result").hidden = false;
}

/** A row of the table of figures; `tag` is "th" for the header row. */
function row(tag, first, ...rest) {
  return element("tr", {}, element("th", { scope: tag === "th" ? "col" : "row", textContent: first }), ...rest.map((text) => element(tag, { textContent: String(text), ...(tag === "th" ? { scope: "col" } : {}) })));
}

function showMatrix({ columns, rows }) {
  const head = element("tr", {}, element("th", { scope: "col", textContent: "label \\ prediction" }), ...columns.map((name) => element("th", { scope: "col", textContent: name })));
  byId("test-matrix").replaceChildren(head, ...rows.map(({ label, cells }) =>
    element("tr", {}, element("th", { scope: "row", textContent: label }), ...cells.map((cell, index) => matrixCell(label, columns[index], cell)))));
}

function matrixCell(label, column, { isRight, images: inside }) {
  if (inside.length === 0) return element("td", { textContent: "0" });
  const opener = button(String(inside.length), () => showCell(label, column, inside), { "aria-label": `${counted(inside.length, "image")}: label ${label}, predicted ${column}` });
  return element("td", { className: isRight ? "right" : "wrong" }, opener);
}

/** Shows the images of a cell, the most probable predictions first. */
function showCell(label, column, inside) {
  // The probability of what was predicted: a class, or none of the classes.
  const probabilityOf = ({ answer, predicted }) => (predicted === null ? answer.unknown : answer.probability);
  const sorted = [...inside].sort((a, b) => probabilityOf(b) - probabilityOf(a));
  byId("test-cell").hidden = false;
  byId("test-cell-title").textContent = `Label ${label}, predicted ${column}: ${counted(inside.length, "image")}${inside.length > MAX_SHOWN ? `, ${MAX_SHOWN} shown` : ""}`;
  byId("test-cell-cards").replaceChildren(...sorted.slice(0, MAX_SHOWN).map((image) => element("li", { className: "card" },
    element("a", { href: image.url, target: "_blank", rel: "noopener", "aria-label": `Open ${image.name} in a new tab` }, element("img", { src: image.url, alt: "", loading: "lazy" })),
    element("p", { className: "name", title: image.path }, ...breakable(image.name)),
    element("p", { textContent: `${className(image.predicted)} ${percent(probabilityOf(image))}` }))));
  byId("test-cell-title").focus();
}
