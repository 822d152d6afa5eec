// Downloads: a plan (the file of label changes that `trueshot repair` carries out), reports, and a classifier.

import { classifier } from "./auditing.js";
import * as collection from "./collection.js";
import * as server from "./server.js";
import { conflicts, imageProblems, standing, summary, unreadable } from "./wording.js";

/** The longest side of an image in the HTML report, in pixels. */
const THUMBNAIL = 160;

/** Lets the browser save a blob as a file. */
export function save(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The images that a plan can name: those in a folder. */
export const plannable = () => collection.pictures().filter(({ path }) => path.includes("/"));

/** The folder that an image was dropped in, above the folder of its class; null without one. */
const topFolder = (path) => (path.split("/").length > 2 ? path.split("/")[0] : null);

/** The collection that a plan is for, as {kind, root, within}. If all images lie in one dropped folder, the kind is "folder"
 * and `root` its name; otherwise the kind is "pictures" (a list of images) and `root` is ".". `within` turns the path of an
 * image into its name in the plan. */
function planRoot(pictures) {
  const tops = new Set(pictures.map(({ path }) => topFolder(path)));
  const [top] = tops;
  return tops.size === 1 && top ? { kind: "folder", root: top, within: (path) => path.slice(top.length + 1) } : { kind: "pictures", root: ".", within: (path) => path };
}

/** The class that an image to review most probably belongs to instead, or quarantine, as in the plans of the command line.
 * `probable` are the classes of the verdict, the most probable first. */
function probableChange({ given, probable }) {
  const to = probable.find(({ class: name }) => name !== given)?.class;
  return to ? { to } : { quarantine: true };
}

/** The change of an image since it was added: one that the user made, or one that the audit plans; null if nothing changes.
 * `verdict` is that of the latest audit, or null if the user chose the label (`picture.confirmed`). It outranks a label that
 * the user accepted from an earlier audit. */
function change(picture, verdict) {
  if (picture.quarantined) return { quarantine: true, reason: "quarantined on the page" };
  if (verdict?.action === "relabel") return { to: verdict.suggested, p_wrong: verdict.p_wrong, reason: "planned by the audit" };
  if (verdict?.action === "quarantine") return { quarantine: true, p_wrong: verdict.p_wrong, reason: "planned by the audit" };
  return picture.label === picture.originalLabel ? null : { to: picture.label, reason: picture.confirmed ? "chosen on the page" : "accepted on the page" };
}

/** A line of a JSON lines file. */
const line = (value) => `${JSON.stringify(value)}\n`;

/** All changes of the plan and all items to review: {changes, review}. */
export function planned() {
  const pictures = plannable();
  const { within } = planRoot(pictures);
  const changes = [], review = [];
  // The most probably wrong first. Changes that the user made have no probability and count as 1, so they come first.
  const byDoubt = (a, b) => (b.p_wrong ?? 1) - (a.p_wrong ?? 1);
  for (const picture of pictures) {
    const verdict = picture.confirmed ? null : collection.verdictOf(picture.id);
    const changed = change(picture, verdict);
    const entry = { item: within(picture.path), from: picture.originalLabel };
    if (changed && changed.to !== picture.originalLabel) changes.push({ ...entry, ...changed });
    // A suggestion to return to the label of the folder changes nothing, and is not to be reviewed.
    else if (!changed && verdict?.action === "review") review.push({ ...entry, ...probableChange(verdict), p_wrong: verdict.p_wrong });
  }
  return { changes: changes.sort(byDoubt), review: review.sort(byDoubt) };
}

/** A plan for `trueshot repair` as JSON lines: a header, one line per change, items to review as comments, and all items. */
export function plan() {
  const pictures = plannable();
  const { kind, root, within } = planRoot(pictures);
  const { changes, review } = planned();
  const header = { format: "trueshot-plan/1", kind, root, items: pictures.filter((picture) => picture.row).length, changes: changes.length };
  // `repair` compares this list with the folder, which still has the images that cannot be read or were removed from
  // the page.
  const inRoot = ({ path }) => (kind === "pictures" ? path.includes("/") : topFolder(path) === root);
  const files = [...pictures.map(collection.fileOf), ...collection.removedFiles().filter(inRoot)];
  const listing = files.map(({ path, label, size }) => ({ item: within(path), class: label, size }));
  const comments = review.length > 0 ? ["# To review: remove the # in front of a change to make it.\n", ...review.map((item) => `# ${line(item)}`)] : [];
  return [line(header), ...changes.map(line), ...comments, line({ listing })].join("");
}

/** The labels that the user confirmed and that are still those of the folder, for `trueshot audit --confirmed`. */
function confirmedLabels() {
  const pictures = plannable();
  const { within } = planRoot(pictures);
  return pictures.filter((picture) => picture.confirmed && !picture.quarantined && picture.label === picture.originalLabel)
    .map((picture) => line({ item: within(picture.path), given: picture.originalLabel })).join("");
}

export const saveConfirmed = () => save("trueshot-confirmed.jsonl", new Blob([confirmedLabels()], { type: "application/jsonl" }));

export const savePlan = () => save("trueshot-plan.jsonl", new Blob([plan()], { type: "application/jsonl" }));

/** The command that makes the changes of the plan. The browser does not know where the folder is. */
export function repairCommand() {
  const { kind, root } = planRoot(plannable());
  const path = `PATH/TO/${kind === "folder" ? root : "FOLDER"}`;
  // Single quotes, because a shell expands $ and ` within double ones.
  const quoted = /^[\w./-]*$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`;
  return `trueshot repair trueshot-plan.jsonl --root ${quoted}`;
}

export const saveJson = () => save("trueshot-report.json", new Blob([JSON.stringify(collection.current().found, null, 2)], { type: "application/json" }));

export async function saveClassifier() {
  const id = await classifier();
  save("trueshot-classifier.safetensors", await server.download(id));
}

/** Text with the characters that have a meaning in HTML replaced by entities. */
const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** A copy of an image whose longest side is THUMBNAIL, as a data URI; an empty image if the browser cannot read the file. */
async function thumbnail(blob) {
  try {
    const bitmap = await createImageBitmap(blob);
    const scale = THUMBNAIL / Math.max(bitmap.width, bitmap.height);
    const canvas = Object.assign(document.createElement("canvas"), { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", 0.8);
  } catch {
    return "data:,";
  }
}

const STYLE = "body{font:16px/1.45 system-ui,sans-serif;max-width:70rem;margin:1rem auto;padding:0 1rem;color:#1d2227;background:#fff}ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.6rem}li{width:10rem;padding:.3rem;border:2px solid transparent;overflow-wrap:anywhere;font-size:.875rem}li.suspect{border-color:#b3380a}li.unsure{border:2px dashed #7a5a00}img{max-width:100%;display:block}";

/** Saves a report as one self-contained HTML file. Images in quarantine are not in it. */
export async function saveHtml() {
  const state = collection.current();
  const parts = [];
  for (const label of state.classes) {
    parts.push(`<h2>${escaped(label)}</h2><ul>`);
    for (const picture of collection.inClass(label)) {
      const { style, text } = standing(picture, collection.verdictOf(picture.id));
      parts.push(`<li class="${style}"><img alt="${escaped(picture.name)}" src="${await thumbnail(picture.blob)}">${escaped(picture.path)}<br><strong>${escaped(text)}</strong></li>`);
    }
    parts.push("</ul>");
  }
  const section = (title, lines) => (lines.length > 0 ? `<h2>${title}</h2>${lines.map((line) => `<p>${escaped(line)}</p>`).join("")}` : "");
  if (state.found) {
    parts.push(section("Label conflicts: the same item with different labels", conflicts(state.found)));
    parts.push(section("Image problems", [...imageProblems(state.found), ...unreadable(collection.pictures())]));
  }
  const overview = state.found ? `<p>${escaped(summary(state.found))}</p>` : "";
  const page = `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>trueshot report</title><style>${STYLE}</style></head><body><h1>trueshot report</h1>${overview}${parts.join("")}</body></html>`;
  save("trueshot-report.html", new Blob([page], { type: "text/html" }));
}
