// Renders a collection. Elements of cards and classes are updated in place, so that the keyboard focus does not move when
// verdicts arrive.

import * as collection from "./collection.js";

const cards = new Map();
const sections = new Map();

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** A probability in percent, rounded as in the reports of the command line. */
export function percent(share) {
  if (share > 0.995 && share < 1) return ">99 %";
  if (share > 0 && share < 0.005) return "<1 %";
  return `${Math.round(100 * share)} %`;
}

/** The expected number of wrong labels as a sentence, worded as in the reports of the command line. */
export function aboutWrong(expected) {
  const count = Math.round(expected);
  if (count === 0) return "probably no label is wrong";
  return count === 1 ? "about 1 label is probably wrong" : `about ${count} labels are probably wrong`;
}

const named = (item, label) => (item.startsWith(`${label}/`) ? item : `${item} (${label})`);

/** The label conflicts of an audit, one line each, worded as in the reports of the command line. */
export const conflicts = (found) => found.duplicates.filter((pair) => pair.label_conflict).map(({ kind, item, given, other, other_given: label }) =>
  `${named(item, given)} ${kind === "exact" ? "is identical to" : "is nearly identical to"} ${named(other, label)}`);

/** The problems of images, one line each: those that the audit found, and the images that cannot be read. */
export const imageProblems = (found, pictures) => [
  ...found.image_problems.map(({ item, kinds }) => `${item}: ${kinds.join(", ")}`),
  ...pictures.filter((picture) => picture.problem).map(({ path }) => `${path}: unreadable`),
];

/** The most probable classes of an image whose label is wrong. */
const inQuestion = ({ given, probable }) =>
  probable.filter(({ class: name }) => name !== given).slice(0, 2).map(({ class: name, p }) => `${name ?? "None"} ${percent(p)}`).join(" or ");

/** How the card of an image shows its verdict: style, text, advice, and whether the user can still confirm the label. */
export function standing(picture, verdict) {
  if (picture.problem) return { style: "unsure", text: `Cannot be read: ${picture.problem}`, undecided: false };
  if (!verdict) return { style: "", text: picture.row ? "" : "Waiting", undecided: false };
  if (verdict.confirmed) return { style: "confirmed", text: "Confirmed", undecided: false };
  const wrong = percent(verdict.p_wrong);
  switch (verdict.verdict) {
    case "relabel": return { style: "suspect", text: `Wrong: ${wrong}. Suggested: ${verdict.suggested}`, undecided: true };
    case "outlier": return { style: "suspect", text: `Wrong: ${wrong}. None of these classes`, undecided: true };
    case "wrong": return { style: "suspect", text: `Wrong: ${wrong}. ${inQuestion(verdict)}`, undecided: true };
    case "unsure": return { style: "unsure", text: `Undecided (wrong: ${wrong})`, advice: verdict.advice, undecided: true };
    default: return { style: "", text: "", undecided: false };
  }
}

function newCard(picture, actions) {
  const card = element("li", { draggable: true });
  card.dataset.id = picture.id;
  const image = element("img", { src: picture.url, alt: picture.name, loading: "lazy", decoding: "async" });
  image.onerror = () => { image.alt = `${picture.name} (cannot be shown)`; };
  const accept = element("button", { type: "button", className: "accept primary", textContent: "Move there" });
  const keep = element("button", { type: "button", className: "keep", textContent: "Keep" });
  const move = element("select", { className: "move" });
  const remove = element("button", { type: "button", className: "remove", textContent: "×", title: "Remove" });
  keep.setAttribute("aria-label", `Keep ${picture.name} here`);
  move.setAttribute("aria-label", `Move ${picture.name} to`);
  remove.setAttribute("aria-label", `Remove ${picture.name}`);
  accept.onclick = () => actions.accept(picture.id);
  keep.onclick = () => actions.keep(picture.id);
  remove.onclick = () => actions.remove(picture.id);
  move.onchange = () => actions.move(picture.id, move.value);
  card.ondragstart = (event) => {
    event.dataTransfer.setData("application/x-trueshot", picture.id);
    event.dataTransfer.effectAllowed = "move";
    card.classList.add("dragged");
  };
  card.ondragend = () => card.classList.remove("dragged");
  card.append(image, element("p", { className: "name", textContent: picture.name, title: picture.path }),
    element("p", { className: "verdict" }), element("p", { className: "advice" }), element("div", { className: "doings" }, accept, keep, move, remove));
  return card;
}

function updateCard(card, picture, state) {
  const verdict = collection.verdictOf(picture.id);
  const { style, text, advice, undecided } = standing(picture, verdict);
  card.className = `card ${style}`;
  card.querySelector(".verdict").textContent = text;
  card.querySelector(".advice").textContent = advice ?? "";
  const accept = card.querySelector(".accept");
  accept.hidden = !verdict?.suggested;
  accept.setAttribute("aria-label", `Move there: ${picture.name} to ${verdict?.suggested}`);
  card.querySelector(".keep").hidden = !undecided;
  const move = card.querySelector(".move");
  const wanted = ["", ...state.classes.filter((name) => name !== picture.place)];
  if (wanted.join("\n") !== [...move.options].map((option) => option.value).join("\n")) {
    move.replaceChildren(...wanted.map((name) => element("option", { value: name, textContent: name || "Move…" })));
  }
  move.hidden = wanted.length < 2;
  move.value = "";
}

function newSection(name, actions) {
  const section = element("section", { className: "class" });
  const title = element("h2", { textContent: name });
  const input = element("input", { type: "file", accept: "image/*", multiple: true, hidden: true });
  input.setAttribute("aria-label", `Add images to ${name}`);
  const button = (text, action) => {
    const made = element("button", { type: "button", textContent: text, onclick: action });
    made.setAttribute("aria-label", `${text}: ${name}`);
    return made;
  };
  input.onchange = () => { actions.choose(input, name); };
  section.append(
    element("header", {}, title, element("span", { className: "count" }), button("Add images", () => input.click()), input,
      button("Rename", () => actions.rename(name)), button("Remove class", () => actions.removeClass(name))),
    element("ul", { className: "cards" }));
  section.setAttribute("aria-label", name);
  section.dataset.class = name;
  actions.target(section, name);
  return section;
}

function updateSection(section, name, state, actions) {
  const pictures = collection.inClass(name);
  const rank = (picture) => collection.verdictOf(picture.id)?.p_wrong ?? 0;
  const suspicious = (picture) => ["suspect", "unsure"].includes(standing(picture, collection.verdictOf(picture.id)).style);
  // Suspects and undecided images come first, the most probably wrong at the front; the rest keeps its order.
  const ordered = [...pictures.filter(suspicious).sort((a, b) => rank(b) - rank(a)), ...pictures.filter((picture) => !suspicious(picture))];
  const wrong = pictures.filter((picture) => standing(picture, collection.verdictOf(picture.id)).style === "suspect").length;
  const count = `${pictures.length} ${pictures.length === 1 ? "image" : "images"}`;
  section.querySelector(".count").textContent = wrong > 0 ? `${count}, ${wrong} suspect` : count;
  const list = section.querySelector(".cards");
  const wanted = ordered.map((picture) => {
    if (!cards.has(picture.id)) cards.set(picture.id, newCard(picture, actions));
    updateCard(cards.get(picture.id), picture, state);
    return cards.get(picture.id);
  });
  if (wanted.length !== list.children.length || wanted.some((card, place) => list.children[place] !== card)) list.replaceChildren(...wanted);
}

/** Updates the page to the state of the collection. */
export function draw(state, actions) {
  const focused = document.activeElement;
  for (const id of [...cards.keys()].filter((id) => !state.pictures.has(id))) cards.delete(id);
  for (const name of [...sections.keys()].filter((name) => !state.classes.includes(name))) {
    sections.get(name).remove();
    sections.delete(name);
  }
  const holder = document.getElementById("classes");
  state.classes.forEach((name, place) => {
    if (!sections.has(name)) sections.set(name, newSection(name, actions));
    const section = sections.get(name);
    updateSection(section, name, state, actions);
    if (holder.children[place] !== section) holder.insertBefore(section, holder.children[place] ?? null);
  });
  // The focus follows a card that moved to another class; if the focused button is hidden now, the card's menu gets it.
  if (focused !== document.activeElement && focused?.isConnected) {
    const card = focused.closest(".card");
    (focused.hidden ? card?.querySelector(".move") : focused)?.focus();
  }
}
