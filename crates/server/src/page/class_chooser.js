// The dialog in which the user chooses a class by typing a part of its name or from the list; a new name makes a new
// class.

import { byId, element, setText } from "./dom.js";
import { classNameProblem } from "./wording.js";

/** The entries of the list as {name, text}, and the index of the marked one. */
let choices = [];
let marked = 0;

/** What the user can choose: the classes that contain the text, those that begin with it first; then, if
 * `isNewAllowed`, a new class of that name. A name that differs from a class only in case is not new: on some systems both
 * would be the same folder. */
function matching(classes, text, isNewAllowed) {
  const wanted = text.trim().toLowerCase();
  const containing = classes.filter((name) => name.toLowerCase().includes(wanted));
  const begins = (name) => name.toLowerCase().startsWith(wanted);
  const sorted = [...containing.filter(begins), ...containing.filter((name) => !begins(name))].map((name) => ({ name, text: name }));
  const isNew = isNewAllowed && wanted !== "" && !classes.some((name) => name.toLowerCase() === wanted) && classNameProblem(text.trim()) === "";
  return isNew ? [...sorted, { name: text.trim(), text: `New class: ${text.trim()}` }] : sorted;
}

/** Draws the list; `choose` is called with the index of an entry that is clicked. The focus stays in the input;
 * `aria-activedescendant` tells screen readers which entry is marked. */
function draw(choose) {
  byId("chooser-list").replaceChildren(...choices.map(({ text }, index) => element("li", {
    id: `chooser-${index}`, role: "option", textContent: text, "aria-selected": String(index === marked), onclick: () => choose(index),
  })));
  const input = byId("chooser-input");
  if (choices.length > 0) input.setAttribute("aria-activedescendant", `chooser-${marked}`);
  else input.removeAttribute("aria-activedescendant");
  byId("chooser-empty").hidden = choices.length > 0;
  byId(`chooser-${marked}`)?.scrollIntoView({ block: "nearest" });
}

/** The promise of the last question. The next one waits for it: there is one dialog. */
let lastQuestion = Promise.resolve();

/** Asks for one of the classes, or a new one. Resolves to its name, or to null if the user cancels. `listClasses` is
 * called when the dialog opens, after the questions before, and returns the classes. */
export function chooseClass(title, listClasses, isNewAllowed = true) {
  lastQuestion = lastQuestion.then(() => ask(title, listClasses(), isNewAllowed));
  return lastQuestion;
}

/** Opens the dialog. */
function ask(title, classes, isNewAllowed) {
  const [dialog, input] = [byId("chooser-dialog"), byId("chooser-input")];
  byId("chooser-title").textContent = title;
  byId("chooser-label").textContent = isNewAllowed ? "Type a part of the name, or a new name" : "Type a part of the name";
  input.value = "";
  return new Promise((done) => {
    let chosen = null;
    // Without an entry (Enter in an empty list), the dialog stays open.
    const choose = (index) => {
      chosen = choices[index]?.name ?? null;
      if (chosen !== null) dialog.close();
    };
    const search = () => {
      choices = matching(classes, input.value, isNewAllowed);
      marked = 0;
      setText(byId("chooser-empty"), (isNewAllowed && classNameProblem(input.value.trim())) || (classes.length > 0 ? "No class has this name." : "There are no classes yet."));
      draw(choose);
    };
    const mark = (step) => { marked = (marked + step + choices.length) % choices.length; draw(choose); };
    input.oninput = search;
    input.onkeydown = (event) => {
      if (event.key === "Enter") choose(marked);
      else if (event.key === "ArrowDown" && choices.length > 0) mark(1);
      else if (event.key === "ArrowUp" && choices.length > 0) mark(-1);
      else return;
      event.preventDefault();
    };
    dialog.onclose = () => done(chosen);
    byId("chooser-cancel").onclick = () => dialog.close();
    search();
    dialog.showModal();
    input.focus();
  });
}
