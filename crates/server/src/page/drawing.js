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

/** A probability in percent, rounded as in the reports of the command line, with a space that does not break the line. */
export function percent(share) {
  if (share > 0.995 && share < 1) return ">99\u00a0%";
  if (share > 0 && share < 0.005) return "<1\u00a0%";
  return `${Math.round(100 * share)}\u00a0%`;
}

export const counted = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** The numbers of items per action, such as "1 to relabel, 3 to review", in the order of the reports of the command line. */
const actions = (counts) => ["relabel", "quarantine", "review", "keep"].filter((action) => action === "keep" || counts[action] > 0).map((action) => `${counts[action]} to ${action}`).join(", ");

/** The counts of an audit in two sentences, worded as in the reports of the command line. */
export function summary({ counts, expected_wrong: expected }) {
  const confirmed = counts.confirmed > 0 ? ` (${counts.confirmed} confirmed)` : "";
  const suspect = counts.suspect === 0 ? "No label is suspect" : counts.suspect === 1 ? "1 label is suspect" : `${counts.suspect} labels are suspect`;
  const wrong = Math.round(expected);
  const about = wrong === 0 ? "probably none is wrong" : wrong === 1 ? "about 1 is expected to be wrong" : `about ${wrong} are expected to be wrong`;
  return `${counted(counts.items, "item")} of ${counted(counts.classes, "class", "classes")}: ${actions(counts)}${confirmed}. ${suspect}; ${about}.`;
}

export const className = (name) => name ?? "none of these";

/** The most probable classes of an image, such as "dog 55 %, none of these 40 %, cat 5 %". */
const probableClasses = ({ probable }) => probable.map(({ class: name, p }) => `${className(name)} ${percent(p)}`).join(", ");

const named = (item, label) => (item.startsWith(`${label}/`) ? item : `${item} (${label})`);

/** The label conflicts of an audit, one line each, worded as in the reports of the command line. */
export const conflicts = (found) => found.duplicates.filter((pair) => pair.label_conflict).map(({ kind, item, given, other, other_given: label }) =>
  `${named(item, given)} ${kind === "exact" ? "is identical to" : "is nearly identical to"} ${named(other, label)}`);

/** The problems of images, one line each: those that the audit found, and the images that cannot be read. */
export const imageProblems = (found, pictures) => [
  ...found.image_problems.map(({ item, kinds }) => `${item}: ${kinds.join(", ")}`),
  ...pictures.filter((picture) => picture.problem).map(({ path }) => `${path}: unreadable`),
];

/** How the card of an image shows its verdict: style, text, advice, and whether the user can still confirm the label. */
export function standing(picture, verdict) {
  if (picture.problem) return { style: "unsure", text: `Cannot be read: ${picture.problem}`, open: false };
  if (!verdict) return { style: "", text: picture.row ? "" : "Waiting", open: false };
  if (verdict.confirmed) return { style: "confirmed", text: "Confirmed", open: false };
  const wrong = percent(verdict.p_wrong);
  switch (verdict.verdict) {
    case "relabel": return { style: "suspect", text: `Wrong: ${wrong}. Belongs to ${verdict.suggested}`, open: true };
    case "outlier": return { style: "suspect", text: `Wrong: ${wrong}. None of these`, open: true };
    case "wrong": return { style: "suspect", text: `Wrong: ${wrong}. Class uncertain`, advice: probableClasses(verdict), open: true };
    case "unsure": return { style: "unsure", text: `Unsure. Wrong: ${wrong}`, advice: [probableClasses(verdict), verdict.advice].filter(Boolean).join("; "), open: true };
    default: return { style: "", text: "", open: false };
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
  move.onchange = () => {
    const [option] = move.selectedOptions;
    if (option.dataset.aside) actions.setAside(picture.id);
    else actions.move(picture.id, move.value);
  };
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
  const { style, text, advice, open } = standing(picture, verdict);
  card.className = `card ${style}`;
  card.querySelector(".verdict").textContent = text;
  card.querySelector(".advice").textContent = advice ?? "";
  const accept = card.querySelector(".accept");
  accept.hidden = !verdict?.suggested;
  accept.setAttribute("aria-label", `Move there: ${picture.name} to ${verdict?.suggested}`);
  card.querySelector(".keep").hidden = !open;
  const move = card.querySelector(".move");
  const wanted = ["", ...state.classes.filter((name) => name !== picture.place)];
  if (wanted.join("\n") !== [...move.options].filter((option) => !option.dataset.aside).map((option) => option.value).join("\n")) {
    const aside = element("option", { value: "", textContent: "Set aside" });
    aside.dataset.aside = "yes";
    move.replaceChildren(...wanted.map((name) => element("option", { value: name, textContent: name || "Move…" })), aside);
  }
  move.selectedIndex = 0;
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
  const planned = (action) => pictures.filter((picture) => collection.verdictOf(picture.id)?.action === action).length;
  const counts = ["relabel", "quarantine", "review"].map((action) => [planned(action), action]).filter(([count]) => count > 0);
  section.querySelector(".count").textContent = [counted(pictures.length, "image"), ...counts.map(([count, action]) => `${count} to ${action}`)].join(", ");
  const list = section.querySelector(".cards");
  const wanted = ordered.map((picture) => {
    if (!cards.has(picture.id)) cards.set(picture.id, newCard(picture, actions));
    updateCard(cards.get(picture.id), picture, state);
    return cards.get(picture.id);
  });
  if (wanted.length !== list.children.length || wanted.some((card, place) => list.children[place] !== card)) list.replaceChildren(...wanted);
}

/** Shows the images that were set aside. */
function drawAside(actions) {
  const pictures = collection.setAsideImages();
  document.getElementById("aside").hidden = pictures.length === 0;
  document.getElementById("aside-count").textContent = counted(pictures.length, "image");
  document.getElementById("aside-cards").replaceChildren(...pictures.map((picture) => {
    const back = element("button", { type: "button", textContent: `Back to ${picture.place}`, onclick: () => actions.putBack(picture.id) });
    back.setAttribute("aria-label", `Back to ${picture.place}: ${picture.name}`);
    return element("li", { className: "card" }, element("img", { src: picture.url, alt: picture.name }),
      element("p", { className: "name", textContent: picture.name, title: picture.path }), element("div", { className: "doings" }, back));
  }));
}

/** Updates the page to the state of the collection. */
export function draw(state, actions) {
  const focused = document.activeElement;
  for (const id of [...cards.keys()].filter((id) => !state.pictures.has(id) || state.pictures.get(id).aside)) cards.delete(id);
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
  drawAside(actions);
  // The focus follows a card that moved to another class; if the focused button is hidden now, the card's menu gets it.
  if (focused !== document.activeElement && focused?.isConnected) {
    const card = focused.closest(".card");
    (focused.hidden ? card?.querySelector(".move") : focused)?.focus();
  }
}
