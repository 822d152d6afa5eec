// The dialog that shows one image enlarged, with its verdict, its three most probable classes, its most similar items
// and the actions. A controller decides which image is shown and what happens after a decision: the review or the
// viewer.
//
// A controller is {id(), verdict(), title, progress(), back, forward, decide(work), end(), closed()}: `id` and `verdict`
// are those of the shown image; `back` and `forward` are {text, key, run, enabled()}; `decide` calls `work` with the id
// of the shown image, and then chooses which image is shown; `end` is called when there is no image to show, and
// `closed` when the dialog has been closed.

import * as collection from "./collection.js";
import { chooseClass } from "./class_chooser.js";
import { pictureNamed } from "./auditing.js";
import { breakable, byId, element, setText } from "./dom.js";
import { urlOf } from "./object_urls.js";
import { className, percent, verdictInWords } from "./wording.js";

/** How many of the most similar items are shown: one row. */
const NEIGHBOURS = 5;
/** The controller that decides what is shown; null while the dialog is closed. */
let controller = null;
/** The shown content as text, to see whether it has changed. */
let shown = "";

/** Opens the dialog with a controller. */
export function open(newController) {
  controller = newController;
  shown = "";
  byId("item-title").textContent = controller.title;
  for (const [id, { text, key }] of [["item-back", controller.back], ["item-forward", controller.forward]]) {
    byId(id).replaceChildren(`${text} `, element("kbd", { textContent: key }));
  }
  if (!byId("item-dialog").open) byId("item-dialog").showModal();
  update();
  focusDefault();
}

/** The change that the audit plans for the shown image: {to}, where null stands for quarantine; null without one. */
function planned() {
  const picture = collection.current().pictures.get(controller.id());
  const verdict = controller.verdict();
  if (!picture || picture.confirmed || picture.quarantined || !["relabel", "quarantine"].includes(verdict?.action)) return null;
  return { to: verdict.action === "relabel" ? verdict.suggested : null };
}

/** The button that the Enter key presses. Without a planned change it is a button that changes nothing. */
function defaultButton() {
  if (byId("item").hidden) return byId("item-close");
  return byId(planned() ? "item-accept" : byId("item-forward").disabled ? "item-close" : "item-forward");
}

/** Gives the focus to the default button of an image that has just appeared, whatever had it before. */
export const focusDefault = () => defaultButton().focus();

export const close = () => byId("item-dialog").close();

/** Updates the dialog to the state of the collection. */
export function update() {
  if (!controller) return;
  const picture = collection.current().pictures.get(controller.id());
  byId("item").hidden = !picture;
  byId("item-end").hidden = Boolean(picture);
  setText(byId("item-progress"), controller.progress());
  byId("item-back").disabled = !controller.back.enabled();
  byId("item-forward").disabled = !controller.forward.enabled();
  if (!picture) return controller.end();
  showItem(picture, controller.verdict());
  setText(byId("item-help"), help());
}

/** Shows an image. Nothing is replaced while the same content stays, so that the keyboard focus does not move. */
function showItem(picture, verdict) {
  const content = JSON.stringify([picture.id, picture.label, picture.confirmed, picture.quarantined, picture.problem, verdict]);
  if (content === shown) return;
  shown = content;
  const image = byId("item-picture");
  if (image.getAttribute("src") !== urlOf(picture)) image.src = urlOf(picture);
  image.alt = picture.name;
  byId("item-name").replaceChildren(...breakable(picture.path));
  byId("item-label").textContent = picture.label;
  byId("item-wrong").textContent = verdict && !picture.confirmed ? ` (wrong: ${percent(verdict.p_wrong)})` : "";
  byId("item-verdict").textContent = [verdictInWords(picture, verdict), verdict?.advice && `${verdict.advice}.`].filter(Boolean).join(" ");
  showPlanned(planned());
  byId("item-keep").disabled = !picture.row || picture.quarantined || picture.confirmed;
  byId("item-quarantine").disabled = picture.quarantined;
  byId("item-probable").replaceChildren(...(verdict?.probable ?? []).map(probableButton));
  byId("item-probable-title").hidden = !verdict;
  byId("item-nearest").replaceChildren(...(verdict?.neighbours ?? []).slice(0, NEIGHBOURS).map(neighbour));
  byId("item-nearest-part").hidden = !verdict;
}

/** Shows the button for the planned change. If the default button had the focus, the new one gets it. */
function showPlanned(change) {
  const accept = byId("item-accept");
  const isDefault = document.activeElement === (accept.hidden ? byId("item-forward") : accept);
  accept.hidden = !change;
  if (change) accept.replaceChildren(...(change.to === null ? ["Quarantine"] : ["Move to ", ...breakable(change.to)]), " ", element("kbd", { textContent: "Enter" }));
  if (isDefault) focusDefault();
}

/** What the keys do for the shown image. */
function help() {
  const next = defaultButton() === byId("item-forward") ? "goes to the next image" : "closes this window";
  const enter = planned() ? "Enter makes the planned change." : `No change is planned: Enter decides nothing and ${next}.`;
  return `${enter} K: the label is right. 1, 2, 3: a probable class. M: another class. Q: quarantine.`;
}

/** The button for one of the most probable classes; its index plus one is its key. */
function probableButton({ class: name, p }, index) {
  const choice = element("button", { type: "button", onclick: () => choose(name) },
    element("span", { textContent: className(name) }), element("span", { textContent: percent(p) }), element("kbd", { textContent: String(index + 1) }));
  choice.style.setProperty("--share", `${(100 * p).toFixed(1)}%`);
  return choice;
}

/** One of the most similar items. Its image is empty if the item is not on the page any more. */
function neighbour({ item, given, similarity }) {
  const picture = pictureNamed(item);
  return element("li", {}, element("img", { src: picture ? urlOf(picture) : "", alt: "" }),
    element("strong", { textContent: given }), element("div", {}, ...breakable(picture?.name ?? item)), element("div", { textContent: `similarity ${similarity.toFixed(2)}` }));
}

// The decisions, each of which the controller carries out.

const accept = () => choose(planned().to);
const keep = () => controller.decide((id) => collection.keep([id]));
const quarantine = () => controller.decide((id) => collection.quarantine([id]));
const remove = () => controller.decide((id) => collection.remove([id]));

/** Moves the shown image to a class; null stands for none of the classes. The class that it has already is confirmed. */
function choose(label) {
  const picture = collection.current().pictures.get(controller.id());
  if (label === null) quarantine();
  else if (label === picture.label && !picture.quarantined) keep();
  else controller.decide((id) => collection.move([id], label));
}

async function chooseOther() {
  const { classes, pictures } = collection.current();
  const { name, label } = pictures.get(controller.id());
  const chosen = await chooseClass(`Move ${name} to`, () => classes.filter((other) => other !== label));
  if (chosen) choose(chosen);
  else focusDefault();
}

/** Handles a key. The page listens, because nothing in the dialog has the focus after a click on the picture. */
function press(event) {
  // A key that has closed the chooser still reaches the page, but its default is prevented.
  if (!byId("item-dialog").open || byId("chooser-dialog").open || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const picture = collection.current().pictures.get(controller.id());
  const probable = controller.verdict()?.probable[Number(key) - 1];
  if (event.repeat && !key.startsWith("Arrow")) {
    // A key that is held down decides about one image only. Enter would also press the button with the focus.
    if (key !== "Enter") return;
  } else if (key === "ArrowLeft") controller.back.run();
  else if (!picture) return;
  else if (key === "ArrowRight") controller.forward.run();
  else if (key === "q" && !picture.quarantined) quarantine();
  else if (key === "m") chooseOther();
  else if (key === "Delete") remove();
  else if (key === "k" && !byId("item-keep").disabled) keep();
  else if (key === "Enter" && !event.target.closest("button")) defaultButton().click();
  else if (probable) choose(probable.class);
  else return;
  event.preventDefault();
}

document.addEventListener("keydown", press);
byId("item-dialog").addEventListener("close", () => { const { closed } = controller; controller = null; closed(); });
byId("item-close").onclick = close;
byId("item-accept").onclick = accept;
byId("item-keep").onclick = keep;
byId("item-move").onclick = chooseOther;
byId("item-quarantine").onclick = quarantine;
byId("item-remove").onclick = remove;
byId("item-back").onclick = () => controller.back.run();
byId("item-forward").onclick = () => controller.forward.run();
