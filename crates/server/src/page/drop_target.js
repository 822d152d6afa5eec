// Makes elements targets for dragged files and cards.

import { carriesCards, draggedIds } from "./card.js";
import { dropped } from "./file_input.js";

/** Makes an element a drop target for files and, if `takeCards` is given, for the cards of images. */
export function makeTarget(holder, takeFiles, takeCards = null) {
  const wants = ({ dataTransfer }) => dataTransfer.types.includes("Files") || (takeCards && carriesCards(dataTransfer));
  holder.addEventListener("dragover", (event) => {
    if (!wants(event)) return;
    event.preventDefault();
    event.stopPropagation();
    holder.classList.add("over");
  });
  holder.addEventListener("dragleave", (event) => { if (!holder.contains(event.relatedTarget)) holder.classList.remove("over"); });
  holder.addEventListener("drop", async (event) => {
    if (!wants(event)) return;
    event.preventDefault();
    event.stopPropagation();
    holder.classList.remove("over");
    if (takeCards && carriesCards(event.dataTransfer)) takeCards(draggedIds(event.dataTransfer));
    else await takeFiles(await dropped(event.dataTransfer));
  });
}
