// The review: steps through the items that the audit leaves to a person, one at a time. The user confirms the label, picks
// another class or sets the image aside. Every decision is audited at once, so that an item that has become certain by it is
// not asked about any more.

import * as collection from "./collection.js";
import { className, counted, element, percent } from "./drawing.js";

const byId = (id) => document.getElementById(id);

/** The image that is shown, the actions of the images to go through, and what was decided or put off so far. */
let current = null;
let actions = ["review"];
let decided = [];
let later = new Set();
let undone = null;
let shown = "";

const remaining = () => collection.withAction(...actions).filter((id) => !later.has(id) && !decided.some((one) => one.id === id));

/** The verdict on an image. After an undo, it is the earlier one until the next audit arrives. */
const verdictOf = (id) => collection.verdictOf(id) ?? (undone?.id === id ? undone.verdict : null);

export function open() {
  const { found } = collection.look();
  actions = found.counts.review > 0 ? ["review"] : ["relabel", "quarantine"];
  byId("review-dialog").showModal();
  restart();
}

function restart() {
  decided = [];
  later = new Set();
  next();
}

/** Shows the next item. The Enter key then confirms its label, whatever had the focus before. */
function next() {
  [current] = remaining();
  update();
  byId(current ? "review-keep" : "review-close").focus();
}

function decide(decision) {
  const verdict = verdictOf(current);
  decided.push({ id: current, verdict, before: collection.decide(current, decision) });
  next();
}

const choose = (place) => (place === null ? decide({ aside: true, confirmed: false }) : decide({ place, confirmed: true, aside: false }));

function putOff() {
  later.add(current);
  next();
}

function undo() {
  const last = decided.pop();
  if (!last || !collection.look().pictures.has(last.id)) return;
  collection.decide(last.id, last.before);
  [undone, current] = [last, last.id];
  update();
  byId("review-keep").focus();
}

/** The picture that an audit calls by this name. */
const named = (name) => collection.support().pictures.find((picture) => picture.path.slice(-120) === name);

function nearest({ item, given, similarity }) {
  const picture = named(item);
  return element("li", {}, element("img", { src: picture?.url ?? "", alt: "" }),
    element("strong", { textContent: given }), element("div", { textContent: `${picture?.name ?? item} (similarity ${similarity.toFixed(2)})` }));
}

function verdictInWords(verdict) {
  if (verdict.action === "relabel") return `Planned: move to ${verdict.suggested}.`;
  if (verdict.action === "quarantine") return "Planned: quarantine.";
  if (verdict.action === "keep") return "With your decisions, the audit finds this label right.";
  return verdict.verdict === "wrong" ? "The label is wrong, but the right class is uncertain." : "The audit is unsure.";
}

/** Shows an item. Nothing is replaced while the same item stays, so that the keyboard focus does not move. */
function showItem(picture, verdict, classes) {
  const content = JSON.stringify([picture.id, verdict, classes]);
  if (content === shown) return;
  shown = content;
  byId("review-picture").src = picture.url;
  byId("review-picture").alt = picture.name;
  byId("review-name").textContent = picture.path;
  byId("review-given").textContent = picture.place;
  byId("review-wrong").textContent = ` (wrong: ${percent(verdict.p_wrong)})`;
  byId("review-verdict").textContent = [verdictInWords(verdict), verdict.advice && `${verdict.advice}.`].filter(Boolean).join(" ");
  byId("review-keep").replaceChildren(`The label ${picture.place} is right `, element("kbd", { textContent: "Enter" }));
  byId("review-probable").replaceChildren(...verdict.probable.map(({ class: name, p }, place) => {
    const button = element("button", { type: "button", onclick: () => choose(name) },
      element("span", { textContent: className(name) }), element("span", { textContent: percent(p) }), element("kbd", { textContent: String(place + 1) }));
    button.style.setProperty("--share", `${(100 * p).toFixed(1)}%`);
    return button;
  }));
  const others = classes.filter((name) => !verdict.probable.some((probable) => probable.class === name));
  byId("review-other").replaceChildren(element("option", { value: "", textContent: "Another class…" }), ...others.map((name) => element("option", { value: name, textContent: name })));
  byId("review-other").hidden = others.length === 0;
  byId("review-nearest").replaceChildren(...verdict.neighbours.slice(0, 5).map(nearest));
}

function showEnd(left) {
  shown = "";
  const waiting = collection.look().looking;
  const changes = collection.withAction("relabel", "quarantine").length;
  const reviewed = `${counted(decided.length, "decision")} made${later.size > 0 ? `, ${later.size} put off` : ""}.`;
  byId("review-done").textContent = waiting ? "Checking labels" : `${left === 0 ? "Nothing is left to review. " : ""}${reviewed}`;
  byId("review-changes").hidden = waiting || changes === 0 || actions[0] !== "review";
  byId("review-changes").textContent = `Check ${counted(changes, "planned change")}, too`;
  byId("review-undo").hidden = decided.length === 0;
}

/** Updates the dialog to the state of the collection. */
export function update() {
  if (!byId("review-dialog").open && !current) return;
  const state = collection.look();
  // The shown item stays until the user decides: a key must never act on an item that has just appeared.
  if (!current || !state.pictures.has(current)) [current] = remaining();
  const left = collection.withAction(...actions).filter((id) => !decided.some((one) => one.id === id)).length;
  const picture = current && state.pictures.get(current);
  const found = current && verdictOf(current);
  byId("review-left").textContent = actions[0] === "review" ? `${left} left to review` : `${counted(left, "planned change")} left`;
  byId("review-item").hidden = !picture;
  byId("review-end").hidden = Boolean(picture);
  byId("review-back").disabled = decided.length === 0;
  if (picture && found) showItem(picture, found, state.classes);
  if (!picture) showEnd(left);
}

/** Handles a key. The page listens, because nothing in the dialog has the focus after a click on the picture. */
function press(event) {
  if (!byId("review-dialog").open || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
  const verdict = current && verdictOf(current);
  const number = Number(event.key) - 1;
  if (event.key === "ArrowLeft") undo();
  else if (!verdict) return;
  else if (event.key === "ArrowRight") putOff();
  else if (event.key.toLowerCase() === "a") choose(null);
  else if (event.key === "Enter" && (event.target.id === "review-keep" || !event.target.closest("button"))) decide({ confirmed: true });
  else if (verdict.probable[number]) choose(verdict.probable[number].class);
  else return;
  event.preventDefault();
}

document.addEventListener("keydown", press);
byId("review-dialog").addEventListener("close", () => { current = null; shown = ""; byId("review").focus(); });
byId("review-close").onclick = () => byId("review-dialog").close();
byId("review-keep").onclick = () => decide({ confirmed: true });
byId("review-aside").onclick = () => choose(null);
byId("review-skip").onclick = putOff;
byId("review-back").onclick = byId("review-undo").onclick = undo;
byId("review-other").onchange = (event) => { if (event.target.value) choose(event.target.value); };
byId("review-changes").onclick = () => { actions = ["relabel", "quarantine"]; restart(); };
