// The section of the images in quarantine, which are not audited.

import { loadPicture } from "./card.js";
import * as collection from "./collection.js";
import { breakable, button, byId, element, setChildren, setText } from "./dom.js";
import { counted } from "./wording.js";

/** The most images that are shown; others appear when some are put back. */
const MOST_SHOWN = 200;
/** Cards by image id and label, which the card shows. */
const cards = new Map();

function newCard(picture, open) {
  const { id, name, label } = picture;
  return element("li", { className: "card" },
    element("button", { type: "button", className: "open", "aria-label": `Open ${name}`, onclick: () => open(id) }, element("img", { alt: "" })),
    element("p", { className: "name", title: picture.path }, ...breakable(name)),
    element("div", { className: "doings" }, button("Put back", () => collection.putBack([id]), { title: `Back to ${label}`, "aria-label": `Put back: ${name} to ${label}` }), element("span", { textContent: label })));
}

/** Shows the images in quarantine; `open` shows one of them enlarged. */
export function draw(open) {
  const pictures = collection.inQuarantine();
  const shown = pictures.slice(0, MOST_SHOWN);
  const key = ({ id, label }) => `${id} ${label}`;
  const wanted = new Set(shown.map(key));
  for (const old of [...cards.keys()]) if (!wanted.has(old)) cards.delete(old);
  for (const picture of shown) if (!cards.has(key(picture))) cards.set(key(picture), newCard(picture, open));
  byId("quarantine").hidden = pictures.length === 0;
  setText(byId("quarantine-count"), counted(pictures.length, "image") + (pictures.length > MOST_SHOWN ? `, ${MOST_SHOWN} shown` : ""));
  setChildren(byId("quarantine-cards"), shown.map((picture) => cards.get(key(picture))));
  shown.forEach((picture) => loadPicture(cards.get(key(picture)), picture));
}
