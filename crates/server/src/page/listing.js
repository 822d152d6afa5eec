// The images that the page shows: per class, filtered and in order. An image whose label is suspect or unsure, or which
// cannot be read, is drawn with a frame (`isFlagged`) and comes first in its class.

import * as collection from "./collection.js";
import * as filters from "./filters.js";
import { isFlagged } from "./wording.js";

/** Image id → the probability that its label is wrong, at the time when the image got its frame. Framed images are
 * sorted by it, so that they do not change places with every audit. */
const ranks = new Map();
let sections = [];

/** The classes with their images: [{name, pictures (all), shown (those that pass the filter, framed ones first), framed
 * (how many of the shown are)}]. */
export const current = () => sections;

/** The ids of all shown images, in order. */
export const shownIds = () => sections.flatMap(({ shown }) => shown.map(({ id }) => id));

export function update() {
  sections = [...collection.byClass()].map(([name, pictures]) => {
    const shown = pictures.filter(filters.passes);
    const framed = shown.filter(ranked).sort((a, b) => ranks.get(b.id) - ranks.get(a.id));
    return { name, pictures, shown: [...framed, ...shown.filter(({ id }) => !ranks.has(id))], framed: framed.length };
  });
}

/** Whether an image has a frame; keeps its rank up to date. */
function ranked(picture) {
  const verdict = collection.verdictOf(picture.id);
  if (!isFlagged(picture, verdict)) ranks.delete(picture.id);
  else if (!ranks.has(picture.id)) ranks.set(picture.id, verdict?.p_wrong ?? 0);
  return ranks.has(picture.id);
}
