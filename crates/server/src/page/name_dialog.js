// The dialog that asks for the name of a class.

import { byId } from "./dom.js";

/** Asks for a name. Resolves to null if the user cancels. `noteOn(name)` gives a note about the name that is being typed. */
export function askName(title, value = "", noteOn = () => "") {
  const [dialog, input] = [byId("name-dialog"), byId("name-input")];
  byId("name-title").textContent = title;
  input.value = value;
  const showNote = () => { byId("name-note").textContent = noteOn(input.value.trim()); };
  showNote();
  return new Promise((done) => {
    let answer = null;
    const end = (yes) => { answer = yes ? input.value.trim() : null; dialog.close(); };
    dialog.querySelectorAll("button").forEach((choice) => { choice.onclick = () => end(choice.value === "yes"); });
    input.oninput = showNote;
    input.onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); end(true); } };
    dialog.onclose = () => done(answer || null);
    dialog.showModal();
    input.select();
  });
}
