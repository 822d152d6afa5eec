"use strict";
// The review on the page of an audit: a user decides about one item after the other, with the keyboard or the mouse,
// and saves a plan for `trueshot repair`. The browser stores the decisions, so that a reload does not lose them.
//
// An item is identified by its row, a number. The script reads two elements that src/report/audit/page.rs writes: the
// items and the rows to decide about (`ReviewData`), and the plan of the audit. `done` holds all steps of the user and
// everything shown follows from it; `changed` updates the page after every step.
{
  const byId = (id) => document.getElementById(id);
  // A new HTML element with properties and children.
  const element = (name, properties, ...children) => {
    const created = Object.assign(document.createElement(name), properties);
    created.append(...children);
    return created;
  };
  const { key, classes, queue, items: itemList } = JSON.parse(byId("review-data").textContent);
  const items = new Map(itemList.map((item) => [item.row, item]));
  // The list element of an item on the page, from which the dialog copies images and similar items.
  const tile = (row) => byId(`i${row}`);
  const dialog = byId("review");
  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  /** A name that may be wrapped after separators. */
  const breakable = (name) => name.split(/(?<=[/\\_-])/).flatMap((part, index) => (index > 0 ? [element("wbr"), part] : [part]));

  // ---- Decisions ----

  // The steps so far, and those that were undone. A step is {row, to} or {row, later: true}. `to` is a class (the given
  // one means that the label is right), or null for quarantine.
  let [done, undone] = [[], []];
  let isStored = true;
  const STORAGE = `trueshot review ${key}`;

  // Whether a stored step can be a step of this page.
  const isStep = (step) => items.has(step?.row) && (step.later === true || step.to === null || classes.includes(step.to));

  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(STORAGE));
      if (stored?.done.every(isStep) && stored.undone.every(isStep)) [done, undone] = [stored.done, stored.undone];
    } catch {
      // Storage is forbidden, which the first decision reports, or its content is not from this page.
    }
  }

  function store() {
    try {
      localStorage.setItem(STORAGE, JSON.stringify({ done, undone }));
      isStored = true;
    } catch {
      isStored = false;
    }
  }

  /** The last decision about every row: a map from the row to `to`. */
  const decisions = () => new Map(done.filter((step) => !step.later).map(({ row, to }) => [row, to]));

  /** Stores the steps and shows the decisions. */
  function changed() {
    store();
    showDecisions();
  }

  /** Makes a new step, after which undone steps cannot be redone. */
  function take(step) {
    done.push(step);
    undone = [];
    changed();
  }

  /** Undoes the last step and returns it; undefined if there is no such step. */
  function undo() {
    const step = done.pop();
    if (step) undone.push(step);
    changed();
    return step;
  }

  /** Redoes the last step that was undone and returns it; undefined if there is no such step. */
  function redo() {
    const step = undone.pop();
    if (step) done.push(step);
    changed();
    return step;
  }

  const inWords = (row, to) => (to === null ? "quarantine" : to === items.get(row).given ? "label is right" : `move to ${to}`);

  /** The text of the button that starts the review: "Review 1 item, check 8 planned changes". `remaining` are the rows
   * without a decision; empty if there are none. */
  function remainingInWords(remaining) {
    const changes = remaining.filter((row) => items.get(row).planned).length;
    const parts = [];
    if (remaining.length > changes) parts.push(`review ${counted(remaining.length - changes, "item")}`);
    if (changes > 0) parts.push(`check ${counted(changes, "planned change")}`);
    const text = parts.join(", ");
    return text.charAt(0).toUpperCase() + text.slice(1);
  }

  /** Marks decided items on the page and updates the buttons and the text `review-state` above the classes. */
  function showDecisions() {
    const decided = decisions();
    for (const old of document.querySelectorAll("li.item[data-decided]")) {
      delete old.dataset.decided;
      old.querySelector(".decision").remove();
    }
    for (const [row, to] of decided) {
      tile(row).dataset.decided = "";
      tile(row).querySelector(".says").after(element("span", { className: "decision", textContent: `Decided: ${inWords(row, to)}` }));
    }
    byId("review-open").textContent = remainingInWords(queue.filter((row) => !decided.has(row))) || "Review again";
    byId("review-undo").disabled = byId("review-back").disabled = byId("review-end-back").disabled = done.length === 0;
    byId("review-redo").disabled = byId("review-again").disabled = undone.length === 0;
    byId("review-confirmed").hidden = ![...decided].some(([row, to]) => to === items.get(row).given);
    const warning = isStored ? "" : " This browser does not store decisions: save the plan before you close the page.";
    byId("review-state").textContent = (decided.size > 0 ? `${counted(decided.size, "decision")}.` : "") + (done.length > 0 ? warning : "");
    document.dispatchEvent(new Event("decided"));
  }

  // ---- Plan ----

  /** The line of a plan for a decision (`to`, as in a step); null if the label is right. */
  function planLine({ row, item, given, p_wrong }, to) {
    if (to === given) return null;
    return JSON.stringify({ item, from: given, ...(to === null ? { quarantine: true } : { to }), p_wrong, reason: "decided in the report" });
  }

  /**
   * The plan of the audit with all decisions: {text, counts}. Lines without a decision stay as they are; the last one,
   * which lists all files, must not be parsed, because its times have more digits than a number in JavaScript.
   *
   * The lines of a plan are a header, changes as JSON, changes to review as JSON behind "# ", other comments, and the
   * list of files.
   */
  function plan() {
    const [header, ...lines] = byId("review-plan").textContent.trim().split("\n");
    const listing = lines.pop();
    // The decisions that no line carries out yet. A line names an item and its label instead of the row.
    const decided = decisions();
    const rowOf = new Map(itemList.map(({ row, item, given }) => [JSON.stringify([item, given]), row]));
    const changes = [], review = [];
    for (const line of lines) {
      const isReview = line.startsWith("#");
      if (isReview && !line.startsWith("# {")) continue;
      const change = JSON.parse(line.replace(/^# /, ""));
      const row = rowOf.get(JSON.stringify([change.item, change.from]));
      // Whether the decision is the change of this line; a change without `to` is a quarantine.
      const isPlanned = decided.get(row) === (change.to ?? null);
      if (isReview && !decided.has(row)) review.push(line);
      if (!isReview && (!decided.has(row) || isPlanned)) {
        changes.push(line);
        decided.delete(row);
      }
    }
    changes.push(...[...decided].map(([row, to]) => planLine(items.get(row), to)).filter(Boolean));
    const comments = review.length > 0 ? ["# To review: remove the # in front of a change to make it.", ...review] : [];
    const quarantined = changes.filter((line) => JSON.parse(line).quarantine).length;
    const counts = `${changes.length - quarantined} to relabel, ${quarantined} to quarantine, ${review.length} to review`;
    return { text: [header, ...changes, ...comments, listing, ""].join("\n"), counts };
  }

  /** Downloads a text as a file. */
  function save(name, text) {
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "application/jsonl" })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    // The browser may read the text some time after the click.
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  function savePlan() {
    const { text, counts } = plan();
    save("plan.jsonl", text);
    const saved = `plan.jsonl: ${counts}. Your files are not changed yet: run trueshot repair plan.jsonl`;
    byId("review-state").textContent = saved;
    byId("review-done").textContent = saved;
  }

  /** Saves the labels that the user has found right, for `trueshot audit --confirmed`. */
  function saveConfirmed() {
    const right = [...decisions()].filter(([row, to]) => to === items.get(row).given);
    save("confirmed.jsonl", right.map(([row]) => `${JSON.stringify({ item: items.get(row).item, given: items.get(row).given })}\n`).join(""));
    byId("review-state").textContent = "confirmed.jsonl: for the option --confirmed of trueshot audit";
  }

  // ---- Dialog ----

  // The rows to go through, the row that is shown (null at the end), and the index in the rows to continue at.
  let rows = queue;
  let current = null;
  let nextIndex = 0;
  /** Whether items with a decision are shown again. */
  let isRepeat = false;

  /** Opens the dialog for a row, or for the queue if `row` is undefined. A row outside the queue is shown alone. */
  function open(row) {
    rows = queue.includes(row) || row === undefined ? queue : [row];
    isRepeat = false;
    dialog.showModal();
    if (row === undefined) restart();
    else show(row);
  }

  /** Goes through the rows without a decision, or through all again if there are none. */
  function restart() {
    nextIndex = 0;
    const decided = decisions();
    isRepeat = rows.every((row) => decided.has(row));
    next();
  }

  /** Shows the next row without a decision, or, if the review is repeated (`isRepeat`), the next row. */
  function next() {
    const decided = decisions();
    const shown = rows.findIndex((row, index) => index >= nextIndex && (isRepeat || !decided.has(row)));
    show(shown < 0 ? null : rows[shown]);
  }

  /** Decides about the shown item, and shows the next one. */
  function decide(to) {
    take({ row: current, to });
    if (rows === queue) next();
    else dialog.close();
  }

  /** Leaves the shown item undecided and shows the next one. This is a step, too, so that it can be undone. */
  function later() {
    if (rows !== queue) return;
    take({ row: current, later: true });
    next();
  }

  /** Undoes the last step and shows its item. */
  function goBack() {
    const step = undo();
    if (step) show(step.row);
  }

  /** Redoes a step and shows the item after it. */
  function goForward() {
    const step = redo();
    if (!step) return;
    show(step.row);
    next();
  }

  /** The change that the Enter key makes: the planned one of an item without a decision; null if no change is
   * planned or the item is already decided. */
  const offered = () => (decisions().has(current) ? null : items.get(current).planned);

  /** The button that the Enter key presses. Without a planned change it is one that decides nothing. */
  const defaultButton = () => byId(offered() ? "review-accept" : rows === queue ? "review-later" : "review-close");

  /** Shows an item, or the end. The default button gets the focus, whatever had it before. */
  function show(row) {
    current = row;
    if (row !== null && rows.includes(row)) nextIndex = rows.indexOf(row) + 1;
    closeClasses();
    byId("review-item").hidden = row === null;
    byId("review-end").hidden = row !== null;
    const position = queue.indexOf(row);
    byId("review-progress").textContent = position < 0 ? "" : `${position + 1} of ${queue.length}`;
    if (row === null) showEnd();
    else showItem(items.get(row));
    (row === null ? byId("review-end-save") : defaultButton()).focus();
    dialog.scrollTop = 0;
  }

  /** Shows how many items are decided, after the last one. */
  function showEnd() {
    const decided = decisions();
    const remaining = rows.filter((row) => !decided.has(row));
    byId("review-done").textContent = remaining.length > 0 ? `${rows.length - remaining.length} of ${rows.length} decided.` : `All ${rows.length} decided.`;
    byId("review-restart").textContent = remainingInWords(remaining) || "Start again";
  }

  /** A copy of the image of a row, or of its replacement; empty if the page does not show the row. */
  const picture = (row) => tile(row)?.querySelector(":scope > img, :scope > .blank")?.cloneNode(true) ?? "";

  /** What the keys do for the shown item. */
  function help() {
    const afterwards = rows === queue ? "goes to the next item" : "closes the review";
    const enter = offered() ? "Enter makes the planned change."
      : decisions().has(current) ? `Enter leaves your decision as it is and ${afterwards}.`
      : `No change is planned: Enter decides nothing and ${afterwards}.`;
    return `${enter} K: the label is right. 1, 2, 3: a probable class. M: another class. Q: quarantine.`;
  }

  /** Fills the dialog with an item. */
  function showItem({ row, item, given, wrong, verdict, planned, probable }) {
    byId("review-picture").replaceChildren(picture(row));
    byId("review-name").replaceChildren(...breakable(item));
    byId("review-given").replaceChildren(...breakable(given));
    byId("review-wrong").textContent = `(wrong: ${wrong})`;
    byId("review-verdict").textContent = verdict;
    const to = decisions().get(row);
    byId("review-decision").textContent = to === undefined ? "" : `Decided: ${inWords(row, to)}.`;
    byId("review-accept").hidden = !offered();
    if (offered()) byId("review-accept").replaceChildren(...(planned.to === null ? ["Quarantine"] : ["Move to ", ...breakable(planned.to)]), " ", element("kbd", { textContent: "Enter" }));
    byId("review-help").textContent = help();
    byId("review-probable").replaceChildren(...probable.map((candidate, index) => {
      const name = candidate.class === null ? ["none of these"] : breakable(candidate.class);
      const button = element("button", { type: "button", onclick: () => decide(candidate.class) },
        element("span", {}, ...name), element("span", { textContent: candidate.percent }), element("kbd", { textContent: String(index + 1) }));
      button.style.setProperty("--share", `${(100 * candidate.p).toFixed(1)}%`);
      return button;
    }));
    byId("review-later").hidden = rows !== queue;
    const similar = [...tile(row).querySelectorAll(".near li")].map((line) => {
      const [name, label] = [line.querySelector("span"), line.querySelector("i")];
      return element("li", {}, picture(line.dataset.row), element("strong", { textContent: label.textContent }), element("span", {}, ...breakable(name.textContent)));
    });
    byId("review-nearest").replaceChildren(...similar);
    byId("review-nearest").parentElement.hidden = similar.length === 0;
  }

  // ---- Another class ----

  /** The largest number of classes offered at once. */
  const MAX_CHOICES = 30;

  /** Shows the field in which the user searches for a class, and the classes. */
  function openClasses() {
    byId("review-classes").hidden = false;
    byId("review-move").setAttribute("aria-expanded", "true");
    byId("review-class").value = "";
    showChoices();
    byId("review-class").focus();
  }

  function closeClasses() {
    byId("review-classes").hidden = true;
    byId("review-move").setAttribute("aria-expanded", "false");
  }

  /** The classes whose name contains the text, those that begin with it first. */
  function matching() {
    const text = byId("review-class").value.trim().toLowerCase();
    const matches = classes.filter((name) => name.toLowerCase().includes(text));
    // Booleans are subtracted as 1 and 0.
    return matches.sort((a, b) => b.toLowerCase().startsWith(text) - a.toLowerCase().startsWith(text));
  }

  /** Shows one button per matching class. */
  function showChoices() {
    const matches = matching();
    const choice = (name, index) => element("button", { type: "button", onclick: () => decide(name) },
      ...breakable(name), ...(index === 0 ? [" ", element("kbd", { textContent: "Enter" })] : []));
    const more = matches.length - MAX_CHOICES;
    const note = matches.length === 0 ? "No class has this in its name." : more > 0 ? `and ${more} more: type a part of the name` : "";
    byId("review-choices").replaceChildren(...matches.slice(0, MAX_CHOICES).map(choice), note);
  }

  byId("review-class").addEventListener("input", showChoices);
  byId("review-classes").addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      closeClasses();
      byId("review-move").focus();
    } else if (event.key === "Enter" && event.target.id === "review-class") {
      const [first] = matching();
      if (first !== undefined) decide(first);
    } else return;
    event.preventDefault();
  });

  // ---- Events ----

  /** Handles a key. The page listens, because nothing in the dialog has the focus after a click on the image. */
  function press(event) {
    if (event.defaultPrevented || event.altKey || event.target.closest("input")) return;
    const pressed = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      const isRedo = pressed === "y" || (pressed === "z" && event.shiftKey);
      if (!isRedo && pressed !== "z") return;
      if (dialog.open) (isRedo ? goForward : goBack)();
      else (isRedo ? redo : undo)();
    } else if (!dialog.open) {
      const item = event.target.closest("li.item");
      if (event.key !== "Enter" || event.target !== item) return;
      open(Number(item.id.slice(1)));
    } else if (event.repeat && !event.key.startsWith("Arrow")) {
      // A key that is held decides about one item only. Enter would also press the button with the focus.
      if (event.key !== "Enter") return;
    } else if (event.key === "ArrowLeft") goBack();
    else if (current === null) return;
    else if (event.key === "ArrowRight") later();
    else if (pressed === "q") decide(null);
    else if (pressed === "m") openClasses();
    else if (pressed === "k") decide(items.get(current).given);
    else if (event.key === "Enter" && !event.target.closest("button")) defaultButton().click();
    else if (items.get(current).probable[Number(pressed) - 1]) decide(items.get(current).probable[Number(pressed) - 1].class);
    else return;
    event.preventDefault();
  }

  document.addEventListener("keydown", press);
  document.addEventListener("click", (event) => {
    const item = event.target.closest("li.item");
    if (item && !event.target.closest(".near")) open(Number(item.id.slice(1)));
  });
  dialog.addEventListener("close", () => {
    current = null;
    // Items put off for later come up again when the dialog is opened the next time.
    [done, undone] = [done, undone].map((steps) => steps.filter((step) => !step.later));
    changed();
  });
  addEventListener("beforeunload", (event) => {
    if (!isStored && done.length > 0) event.preventDefault();
  });
  byId("review-open").onclick = () => open();
  byId("review-undo").onclick = undo;
  byId("review-redo").onclick = redo;
  byId("review-save").onclick = byId("review-end-save").onclick = savePlan;
  byId("review-confirmed").onclick = saveConfirmed;
  byId("review-close").onclick = () => dialog.close();
  byId("review-accept").onclick = () => decide(offered().to);
  byId("review-keep").onclick = () => decide(items.get(current).given);
  byId("review-quarantine").onclick = () => decide(null);
  byId("review-move").onclick = () => (byId("review-classes").hidden ? openClasses() : closeClasses());
  byId("review-back").onclick = byId("review-end-back").onclick = goBack;
  byId("review-again").onclick = goForward;
  byId("review-later").onclick = later;
  byId("review-restart").onclick = restart;

  document.body.classList.add("scripted");
  byId("review-tools").hidden = byId("review-hint").hidden = false;
  byId("review-open").hidden = queue.length === 0;
  load();
  showDecisions();
}
