// The card of an image: thumbnail, name, verdict, and actions. Cards can be dragged to another class.

import * as collection from "./collection.js";
import { breakable, button, element, setText } from "./dom.js";
import * as selection from "./selection.js";
import * as thumbnails from "./thumbnails.js";
import { standing } from "./wording.js";

/** The type of dragged data that marks cards, as opposed to files. */
const DRAGGED = "application/x-trueshot";

/** Makes the card of an image. `actions` has a function per action, each of which takes the id of the image. */
export function newCard(picture, actions) {
  const { id, name } = picture;
  const image = element("img", { alt: "", draggable: false });
  image.onerror = () => image.parentElement.classList.add("blank");
  const check = element("input", { type: "checkbox", className: "select", "aria-label": `Select ${name}`, onclick: (event) => actions.select(id, event) });
  const open = element("button", { type: "button", className: "open", "aria-label": `Open ${name}`, onclick: (event) => actions.open(id, event) }, image);
  const accept = button("Move there", (event) => actions.accept(id, event), { className: "accept primary" });
  const doings = [
    button("Keep", (event) => actions.keep(id, event), { className: "keep", "aria-label": `Keep ${name} here` }),
    button("Move…", (event) => actions.move(id, event), { className: "move", "aria-label": `Move ${name} to another class` }),
    button("×", (event) => actions.remove(id, event), { className: "remove", title: "Remove", "aria-label": `Remove ${name}` }),
  ];
  const facts = element("div", { className: "facts" }, element("p", { className: "name", title: picture.path }, ...breakable(name)),
    element("p", { className: "verdict" }), element("p", { className: "advice" }), accept, element("div", { className: "doings" }, ...doings));
  const card = element("li", { draggable: true, "data-id": id }, open, check, facts);
  card.ondragstart = (event) => startDrag(event, card, id);
  card.ondragend = () => card.classList.remove("dragged");
  return card;
}

/** Loads the image of a card that is in the document. */
export function loadPicture(card, picture) {
  const image = card.querySelector("img");
  if (!image.src) thumbnails.show(image, picture);
}

function startDrag(event, card, id) {
  event.dataTransfer.setData(DRAGGED, JSON.stringify(selection.withSelected(id)));
  event.dataTransfer.effectAllowed = "move";
  card.classList.add("dragged");
}

/** Whether cards, not files, are dragged. */
export const carriesCards = (transfer) => transfer.types.includes(DRAGGED);
/** The ids of the dragged images; empty if files are dragged. */
export const draggedIds = (transfer) => JSON.parse(transfer.getData(DRAGGED) || "[]");

/** Updates a card. Only the controls of the active card are reached with Tab; arrow keys make another card active. */
export function updateCard(card, picture, isActive) {
  const verdict = collection.verdictOf(picture.id);
  const { style, text, advice, canConfirm } = standing(picture, verdict);
  const isSelected = selection.has(picture.id);
  card.className = `card ${style} ${isSelected ? "selected" : ""}`;
  setText(card.querySelector(".verdict"), text);
  card.querySelector(".verdict").title = text;
  setText(card.querySelector(".advice"), advice ?? "");
  card.querySelector(".advice").title = advice ?? "";
  card.querySelector(".select").checked = isSelected;
  const accept = card.querySelector(".accept");
  accept.hidden = !verdict?.suggested;
  accept.title = `Move to ${verdict?.suggested}`;
  accept.setAttribute("aria-label", `Move there: ${picture.name} to ${verdict?.suggested}`);
  card.querySelector(".keep").hidden = !canConfirm;
  card.querySelectorAll("button, input").forEach((control) => { control.tabIndex = isActive ? 0 : -1; });
}
