// Measures a classifier on a test set. Nothing here touches the DOM.

import { isRefused } from "./predictions.js";
import { className } from "./wording.js";

/** The prediction for an image as the page shows it: a class, or null for none of the classes. */
export const predictedClass = (answer) => (isRefused(answer) ? null : answer.class);

/** Accuracy, figures per class and the confusion matrix of images: [{label, predicted}]. Images whose class is not one of
 * `classes` (`others`) are right if they are predicted as none of these (`othersRefused`); they are not part of the
 * accuracy. */
export function evaluate(images, classes) {
  const known = images.filter(({ label }) => classes.includes(label));
  const others = images.filter(({ label }) => !classes.includes(label));
  const right = known.filter(({ label, predicted }) => predicted === label).length;
  const mentioned = new Set(images.flatMap(({ label, predicted }) => [label, predicted]));
  const used = classes.filter((name) => mentioned.has(name));
  return {
    images: known.length,
    right,
    refused: known.filter(({ predicted }) => predicted === null).length,
    others: others.length,
    othersRefused: others.filter(({ predicted }) => predicted === null).length,
    perClass: used.map((name) => figures(name, images)),
    matrix: matrix(images, used, [...new Set(others.map(({ label }) => label))].sort()),
  };
}

/** Recall and precision of a class; null where there is nothing to divide by. */
function figures(name, images) {
  const labelled = images.filter(({ label }) => label === name);
  const predicted = images.filter((image) => image.predicted === name);
  const right = labelled.filter((image) => image.predicted === name).length;
  return { name, images: labelled.length, right, recall: labelled.length > 0 ? right / labelled.length : null, precision: predicted.length > 0 ? right / predicted.length : null };
}

/** Rows are labels, columns are predictions, the last of which is "none of these"; a cell is a list of images. */
function matrix(images, classes, others) {
  const columns = [...classes, null];
  const labels = new Set(images.map(({ label }) => label));
  const cells = new Map();
  for (const image of images) {
    const key = JSON.stringify([image.label, image.predicted]);
    cells.set(key, [...(cells.get(key) ?? []), image]);
  }
  const cell = (label, column) => ({
    isRight: column === label || (column === null && others.includes(label)),
    images: cells.get(JSON.stringify([label, column])) ?? [],
  });
  return {
    columns: columns.map(className),
    rows: [...classes, ...others].filter((label) => labels.has(label)).map((label) => ({ label, cells: columns.map((column) => cell(label, column)) })),
  };
}
