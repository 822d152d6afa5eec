// A grid of cards of which only the rows near the visible part of the page are in the document. Cards have two heights, set
// in the style sheet: framed cards, which come first, are taller than the others.

import { setChildren } from "./dom.js";

/** How far beyond the visible part rows are kept, in heights of the window. */
const MARGIN = 1;

const grids = new Set();
let measures = null;
let scheduled = false;

/** Numbers that are the same for all grids: pixels per row of each kind, and columns. */
function measure(list) {
  const style = getComputedStyle(list);
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const pixels = (name) => parseFloat(style.getPropertyValue(name)) * rem;
  const gap = parseFloat(style.rowGap);
  return { gap, columns: style.gridTemplateColumns.split(" ").length, framed: pixels("--framed-height") + gap, plain: pixels("--plain-height") + gap };
}

export class VirtualGrid {
  /** `cardOf(id)` makes or finds the card of an image and updates it. */
  constructor(list, cardOf) {
    Object.assign(this, { list, cardOf, ids: [], framed: 0, drawn: null });
    grids.add(this);
  }

  setItems(ids, framed) {
    Object.assign(this, { ids, framed, drawn: null });
    scheduleDraw();
  }

  remove() {
    grids.delete(this);
  }

  /** The distance of a row from the top of the list. */
  top(row) {
    const framedRows = Math.ceil(this.framed / measures.columns);
    return Math.min(row, framedRows) * measures.framed + Math.max(0, row - framedRows) * measures.plain;
  }

  /** The row at a distance from the top of the list. */
  rowAt(y) {
    const framedRows = Math.ceil(this.framed / measures.columns);
    const framedEnd = framedRows * measures.framed;
    return Math.floor(y < framedEnd ? y / measures.framed : framedRows + (y - framedEnd) / measures.plain);
  }

  rows() {
    return Math.ceil(this.ids.length / measures.columns);
  }

  /** Gives the list the height of all rows, whether they are in the document or not. */
  setHeight() {
    const height = this.ids.length === 0 ? "" : `${this.top(this.rows()) - measures.gap}px`;
    if (this.list.style.height !== height) this.list.style.height = height;
  }

  draw(top) {
    const margin = MARGIN * innerHeight;
    const first = Math.min(this.rows(), Math.max(0, this.rowAt(-top - margin)));
    const last = Math.max(first, Math.min(this.rows(), this.rowAt(innerHeight - top + margin) + 1));
    const drawn = `${first} ${last} ${measures.columns} ${measures.plain} ${measures.framed}`;
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    setChildren(this.list, this.ids.slice(first * measures.columns, last * measures.columns).map(this.cardOf));
    this.list.style.paddingTop = `${this.top(first)}px`;
  }

  /** Scrolls the row of an image into view. */
  reveal(id) {
    const row = Math.floor(this.ids.indexOf(id) / measures.columns);
    const [top, bottom] = [this.top(row), this.top(row + 1)].map((y) => this.list.getBoundingClientRect().top + y);
    const covered = document.getElementById("toolbar").offsetHeight;
    if (top < covered) scrollBy(0, top - covered);
    else if (bottom > innerHeight) scrollBy(0, bottom - innerHeight);
    drawNow();
  }
}

export const columns = () => measures?.columns ?? 1;

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

export function scheduleDraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(drawNow);
}

addEventListener("scroll", scheduleDraw, { passive: true });
addEventListener("resize", scheduleDraw);
