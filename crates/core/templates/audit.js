"use strict";
// The page of an audit: buttons and a search field that filter the items, the images of their most similar items, and
// arrow keys. The review is in review.js, which announces changed decisions with the event "decided".
{
  const form = document.querySelector(".filters");
  const buttons = [...form.querySelectorAll("button")];
  const search = form.querySelector("input");
  const items = [...document.querySelectorAll("li.item")];
  const classes = [...document.querySelectorAll("section.class")];
  // The pressed button: "all"; "suspect" or "decided", which are attributes of items (data-suspect, data-decided); or an
  // action of the audit, the value of data-action.
  let show = "all";
  const passes = (item) =>
    (show === "all" || (show === "suspect" || show === "decided" ? show in item.dataset : item.dataset.action === show)) &&
    item.dataset.text.toLowerCase().includes(search.value.trim().toLowerCase());
  // Hides the items that do not pass, and the classes without any that do.
  const apply = () => {
    let count = 0;
    for (const item of items) {
      item.hidden = !passes(item);
      count += item.hidden ? 0 : 1;
    }
    for (const section of classes) section.hidden = !section.querySelector("li.item:not([hidden])");
    form.querySelector("output").textContent = `${count} of ${items.length} shown`;
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      show = button.dataset.show;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      apply();
    });
  }
  search.addEventListener("input", apply);
  document.addEventListener("decided", () => {
    const button = buttons.find((candidate) => candidate.dataset.show === "decided");
    const count = document.querySelectorAll("li.item[data-decided]").length;
    button.textContent = `decided (${count})`;
    button.hidden = count === 0 && show !== "decided";
    apply();
  });
  form.hidden = false;
  apply();

  // Prepares the box of similar items of the item that is pointed at or has the focus: chooses its side and, the first
  // time, copies the images of the similar items from the page. audit.css shows and hides the box.
  const prepareSimilar = (event) => {
    const item = event.target.closest?.("li.item");
    if (!item) return;
    const near = item.querySelector(".near");
    const box = item.getBoundingClientRect();
    // With too little space on the right or below, the box opens on the other side. 340 pixels are its width (19rem) and
    // a margin, 330 an estimate of its height, which is not known before it is shown.
    near.classList.toggle("left", box.left > innerWidth - 340);
    near.classList.toggle("up", box.bottom > innerHeight - 330 && box.top > 330);
    if (item.dataset.prepared) return;
    item.dataset.prepared = "yes";
    for (const line of near.querySelectorAll("li")) {
      const image = document.querySelector(`#i${line.dataset.row} > img`);
      if (image) line.prepend(image.cloneNode());
    }
  };
  document.addEventListener("mouseover", prepareSimilar);
  document.addEventListener("focusin", prepareSimilar);

  // Arrow keys move between the visible items; a link from the map clears the filters if they hide its item.
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const item = document.activeElement?.closest?.("li.item");
    if (!step || !item) return;
    const shown = items.filter((other) => !other.hidden);
    shown[shown.indexOf(item) + step]?.focus();
    event.preventDefault();
  });
  addEventListener("hashchange", () => {
    const item = document.getElementById(location.hash.slice(1));
    if (!item?.matches?.("li.item")) return;
    if (item.hidden) {
      search.value = "";
      buttons[0].click();
      item.scrollIntoView();
    }
    item.focus();
  });
}
