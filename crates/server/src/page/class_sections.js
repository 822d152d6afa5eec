// The sections of the classes, with their cards, and the keyboard in them.

import { isAvailable as isCameraAvailable } from "./camera.js";
import { loadPicture, newCard, updateCard } from "./card.js";
import * as collection from "./collection.js";
import { button, byId, element, setChildren, setText } from "./dom.js";
import * as filters from "./filters.js";
import * as listing from "./listing.js";
import * as selection from "./selection.js";
import { VirtualGrid, columns, drawNow, framedColumns } from "./virtual_grid.js";
import { ACTIONS, counted } from "./wording.js";

/** Class name → {holder, grid}. */
const sections = new Map();
/** Image id → its card, for the cards in the document. */
const cards = new Map();
/** The image whose card has the Tab stop. */
let active = null;
/** What cards and the menus of classes do (main.js). */
let actions = null;

/** Updates the sections to the state of the collection. `newActions` are what cards and menus do. */
export function draw(newActions) {
  actions = newActions;
  const listed = listing.current();
  const names = new Set(listed.map(({ name }) => name));
  for (const [name, { grid }] of sections) {
    if (names.has(name)) continue;
    grid.remove();
    sections.delete(name);
  }
  for (const { name } of listed) if (!sections.has(name)) sections.set(name, newSection(name));
  setChildren(byId("classes"), listed.map(({ name }) => sections.get(name).holder));
  // If the image with the Tab stop is not shown any more, the first shown image gets it.
  if (!sectionOf(active)) active = listed.find(({ shown }) => shown.length > 0)?.shown[0].id ?? null;
  const focused = focusedCard();
  listed.forEach(updateSection);
  drawNow();
  // A card that has moved to another section has lost the focus: give it back.
  if (focused && !document.activeElement?.closest(".card")) focusCard(focused.id, focused.control);
}

/** The focused card and the first class of its focused control, as `focusCard` takes them. */
const focusedCard = () => {
  const card = document.activeElement?.closest("#classes .card");
  return card && { id: card.dataset.id, control: document.activeElement.classList[0] };
};

function newSection(name) {
  const list = element("ul", { className: "cards" });
  const input = element("input", { type: "file", accept: "image/*", multiple: true, hidden: true, "aria-label": `Add images to ${name}` });
  input.onchange = () => actions.chooseFiles(input, name);
  const labelled = (text, action) => button(text, action, { "aria-label": `${text}: ${name}` });
  const camera = labelled("Camera", () => actions.record(name));
  camera.hidden = !isCameraAvailable();
  const header = element("header", {},
    element("h2", { textContent: name }),
    element("span", { className: "count" }),
    labelled("Add images", () => input.click()),
    input,
    camera,
    newMenu(name, labelled));
  const holder = element("section", { className: "class", "aria-label": name, "data-class": name }, header, list);
  actions.makeTarget(holder, name);
  return { holder, grid: new VirtualGrid(list, cardOf, forgetCards) };
}

/** The menu of a class. `labelled(text, action)` makes a button whose label names the class. */
function newMenu(name, labelled) {
  const menu = element("details", { className: "menu" },
    element("summary", { textContent: "Edit", "aria-label": `Edit: ${name}` }),
    element("div", {},
      labelled("Rename", () => actions.renameClass(name)),
      labelled("Merge into…", () => actions.mergeClass(name)),
      labelled("Select all", () => actions.selectClass(name)),
      labelled("Remove class", () => actions.removeClass(name))));
  menu.onclick = (event) => { if (event.target.closest("button")) menu.open = false; };
  menu.onkeydown = (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  };
  return menu;
}

function updateSection({ name, pictures, shown, framed }) {
  const { holder, grid } = sections.get(name);
  holder.hidden = filters.isActive() && shown.length === 0;
  setText(holder.querySelector(".count"), countsInWords(pictures));
  grid.setItems(shown.map(({ id }) => id), framed);
}

/** The counts of a class, such as "12 images, 1 to relabel". */
function countsInWords(pictures) {
  const count = (action) => pictures.filter(({ id }) => collection.verdictOf(id)?.action === action).length;
  const planned = ACTIONS.filter((action) => action !== "keep").map((action) => [count(action), action]).filter(([number]) => number > 0);
  return [counted(pictures.length, "image"), ...planned.map(([number, action]) => `${number} to ${action}`)].join(", ");
}

/** The card of an image, up to date; made when it is first needed. */
function cardOf(id) {
  const picture = collection.current().pictures.get(id);
  if (!cards.has(id)) cards.set(id, newCard(picture, actions));
  const card = cards.get(id);
  updateCard(card, picture, id === active);
  loadPicture(card, picture);
  return card;
}

/** Drops the cards that are not in the document any more. */
function forgetCards() {
  for (const [id, card] of cards) if (!card.isConnected) cards.delete(id);
}

/** The section that shows an image; undefined if the image is not shown. */
const sectionOf = (id) => listing.current().find(({ shown }) => shown.some((picture) => picture.id === id));

/** The image that the user continues with after an action on this one: the next of its class, or the one before. */
export function neighbourOf(id) {
  const { shown } = sectionOf(id) ?? { shown: [] };
  const index = shown.findIndex((picture) => picture.id === id);
  return (shown[index + 1] ?? shown[index - 1])?.id ?? null;
}

/** Moves the Tab stop and the focus to the card of an image: to its control with the class `control`, or to the image if that
 * control is hidden. */
export function focusCard(id, control = "open") {
  const section = sectionOf(id);
  if (!section) return;
  const previous = active;
  active = id;
  sections.get(section.name).grid.reveal(id);
  updateTabStops(previous, id);
  const card = cards.get(id);
  const target = card?.querySelector(`.${control}`);
  (target && !target.hidden ? target : card?.querySelector(".open"))?.focus({ preventScroll: true });
}

/** Updates the cards of the image that had the Tab stop and of the one that has it now. */
function updateTabStops(...ids) {
  for (const id of ids) if (cards.has(id) && collection.current().pictures.has(id)) cardOf(id);
}

/** The image that an arrow key, Home or End leads to, in the order of the page. Up and down move by one row, which has
 * fewer cards if they are framed. */
function arrowTarget(id, key) {
  const order = listing.shownIds();
  const perRow = cards.get(id)?.matches(".suspect, .unsure, .unreadable") ? framedColumns() : columns();
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[key];
  const index = order.indexOf(id);
  if (key === "Home") return order[0];
  if (key === "End") return order.at(-1);
  return order[Math.min(order.length - 1, Math.max(0, index + step))];
}

function handleKey(event) {
  const card = event.target.closest("#classes .card");
  if (!card || event.altKey) return;
  const { id } = card.dataset;
  const isOpener = event.target.matches(".open");
  const withControl = event.ctrlKey || event.metaKey;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (withControl && key === "a") selection.selectAll();
  else if (withControl) return;
  else if (["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"].includes(key)) walk(id, arrowTarget(id, key), event.shiftKey);
  // On other controls, the space bar activates them.
  else if (key === " " && isOpener) selection.toggle(id);
  else if (key === "k") actions.keep(id, event);
  else if (key === "m") actions.move(id, event);
  else if (key === "q") actions.quarantine(id, event);
  else if (key === "Delete") actions.remove(id, event);
  else return;
  event.preventDefault();
}

/** Moves the focus to another card; with Shift, the cards in between are selected. */
function walk(from, to, isSelecting) {
  if (isSelecting && !selection.has(from)) selection.toggle(from);
  focusCard(to);
  if (isSelecting) selection.extendTo(to);
}

/** A click anywhere else closes the menu of a class. */
function closeMenus(event) {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
}

document.addEventListener("click", closeMenus);
byId("classes").addEventListener("keydown", handleKey);
byId("classes").addEventListener("focusin", (event) => {
  const card = event.target.closest(".card");
  if (!card || card.dataset.id === active) return;
  const previous = active;
  active = card.dataset.id;
  updateTabStops(previous, active);
});
