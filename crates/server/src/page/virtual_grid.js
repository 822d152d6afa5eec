// A grid of cards of which only the rows near the visible part of the page are in the document: thousands of cards
// would make the page slow. All rows have the same height, set in the style sheet (--card-height, in rem). Framed cards
// (see `isFlagged` in wording.js) come first and are two columns wide.
//
// So a grid has up to three kinds of rows: full rows of framed cards, one row with the remaining framed cards and as
// many other cards as fit, and rows of other cards.

import { setChildren } from "./dom.js";

/** How far beyond the visible part rows are kept, in window heights. */
const MARGIN = 1;

const grids = new Set();
/** What `measure` returned last; null before the first drawing. */
let measures = null;
/** Whether a drawing is scheduled. */
let scheduled = false;

/** Numbers that are the same for all grids: columns, pixels from one row to the next (`rowStep`), and the gap between rows. */
function measure(list) {
  const style = getComputedStyle(list);
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const gap = parseFloat(style.rowGap);
  return { gap, columns: style.gridTemplateColumns.split(" ").length, rowStep: parseFloat(style.getPropertyValue("--card-height")) * rem + gap };
}

export class VirtualGrid {
  /** `cardOf(id)` makes or finds the card of an image and updates it; `afterDraw` is called after cards have come or gone. */
  constructor(list, cardOf, afterDraw) {
    Object.assign(this, { list, cardOf, afterDraw, ids: [], framed: 0, drawn: null });
    grids.add(this);
  }

  /** Sets the images to show, in order; the first `framed` of them are framed. */
  setItems(ids, framed) {
    Object.assign(this, { ids, framed, drawn: null });
    scheduleDraw();
  }

  remove() {
    grids.delete(this);
  }

  /** How many framed cards fit in a row, how many rows they fill, and how many are left for the shared row. */
  shape() {
    const perRow = framedColumns();
    return { perRow, fullRows: Math.floor(this.framed / perRow), rest: this.framed % perRow };
  }

  /** The index of the first card of a row. */
  firstOf(row) {
    const { perRow, fullRows, rest } = this.shape();
    if (row <= fullRows) return row * perRow;
    // Before this row are all framed cards, the other cards of the shared row (in which each of the `rest` framed cards
    // takes two columns), and the full rows of other cards between.
    return this.framed + (measures.columns - 2 * rest) + (row - fullRows - 1) * measures.columns;
  }

  /** The row of the card with an index. */
  rowOf(index) {
    const { perRow, fullRows, rest } = this.shape();
    if (index < this.framed) return Math.floor(index / perRow);
    // Count columns from the start of the shared row, in which the framed cards take two each.
    return fullRows + Math.floor((index - this.framed + 2 * rest) / measures.columns);
  }

  rows() {
    return this.ids.length === 0 ? 0 : this.rowOf(this.ids.length - 1) + 1;
  }

  /** Gives the list the height of all rows, including those that are not in the document. */
  setHeight() {
    const height = this.ids.length === 0 ? "" : `${this.rows() * measures.rowStep - measures.gap}px`;
    if (this.list.style.height !== height) this.list.style.height = height;
  }

  /** Puts the cards of the rows near the visible part into the document. `top` is the list's position in the window. */
  draw(top) {
    const margin = MARGIN * innerHeight;
    const clamped = (row) => Math.min(this.rows(), Math.max(0, row));
    const first = clamped(Math.floor((-top - margin) / measures.rowStep));
    const last = clamped(Math.floor((innerHeight - top + margin) / measures.rowStep) + 1);
    // Nothing to do if the same rows are in the document already.
    const drawn = `${first} ${last} ${measures.columns} ${measures.rowStep}`;
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    setChildren(this.list, this.ids.slice(this.firstOf(first), this.firstOf(last)).map(this.cardOf));
    this.afterDraw();
    // The padding takes the place of the rows above.
    this.list.style.paddingTop = `${first * measures.rowStep}px`;
  }

  /** Scrolls the row of an image into view. */
  reveal(id) {
    const top = this.list.getBoundingClientRect().top + this.rowOf(this.ids.indexOf(id)) * measures.rowStep;
    const covered = document.getElementById("toolbar").offsetHeight;
    if (top < covered) scrollBy(0, top - covered);
    else if (top + measures.rowStep > innerHeight) scrollBy(0, top + measures.rowStep - innerHeight);
    drawNow();
  }
}

export const columns = () => measures?.columns ?? 1;
/** Framed cards are two columns wide. */
export const framedColumns = () => Math.max(1, Math.floor(columns() / 2));

/** Draws all grids. First all heights are written, then all positions are read, so that the layout is computed once. */
export function drawNow() {
  scheduled = false;
  const visible = [...grids].filter((grid) => grid.list.offsetParent);
  if (visible.length === 0) return;
  measures = measure(visible[0].list);
  for (const grid of visible) grid.setHeight();
  const tops = visible.map((grid) => grid.list.getBoundingClientRect().top);
  visible.forEach((grid, index) => grid.draw(tops[index]));
}

function scheduleDraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(drawNow);
}

addEventListener("scroll", scheduleDraw, { passive: true });
addEventListener("resize", scheduleDraw);
