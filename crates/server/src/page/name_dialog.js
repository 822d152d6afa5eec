// The dialog that asks for the name of a class.

import { byId } from "./dom.js";
import { classNameProblem } from "./wording.js";

/** Asks for a name that a folder can have. Resolves to null if the user cancels. `noteOn(name)` gives a note about the name
 * that is being typed. */
export function askName(title, value = "", noteOn = () => "") {
  const [dialog, input] = [byId("name-dialog"), byId("name-input")];
  byId("name-title").textContent = title;
  input.value = value;
  const accept = dialog.querySelector("button[value=yes]");
  const check = () => {
    const problem = classNameProblem(input.value.trim());
    accept.disabled = problem !== "";
    byId("name-note").textContent = problem || noteOn(input.value.trim());
  };
  check();
  return new Promise((done) => {
    let answer = null;
    const end = (yes) => { answer = yes ? input.value.trim() : null; dialog.close(); };
    dialog.querySelectorAll("button").forEach((choice) => { choice.onclick = () => end(choice.value === "yes"); });
    input.oninput = check;
    input.onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); if (!accept.disabled) end(true); } };
    dialog.onclose = () => done(answer || null);
    dialog.showModal();
    input.select();
  });
}
