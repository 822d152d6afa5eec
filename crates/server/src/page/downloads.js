// Downloads: a plan, reports, and a classifier.

import * as collection from "./collection.js";
import { aboutWrong, conflicts, imageProblems, standing } from "./drawing.js";
import * as server from "./server.js";

const THUMBNAIL = 160;

export function save(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The folder that all images were dropped in, if there is exactly one, and the paths of images within it. */
function rooted(pictures) {
  const tops = new Set(pictures.map(({ path }) => (path.split("/").length > 2 ? path.split("/")[0] : null)));
  const [top] = tops;
  return tops.size === 1 && top ? { kind: "folder", root: top, within: (path) => path.slice(top.length + 1) } : { kind: "pictures", root: ".", within: (path) => path };
}

/** The change of an image since it was added: a move that the user made, or one that is suggested; null if none. */
function change(picture, verdict) {
  if (verdict?.suggested) return { to: verdict.suggested, p_wrong: verdict.p_wrong, reason: "suggested" };
  if (verdict?.verdict === "outlier" && !verdict.confirmed) return { quarantine: true, p_wrong: verdict.p_wrong, reason: "none of these classes" };
  if (verdict?.verdict === "wrong" && !verdict.confirmed) return { quarantine: true, p_wrong: verdict.p_wrong, reason: "wrong, the right class is uncertain" };
  return picture.place === picture.origin ? null : { to: picture.place, reason: picture.confirmed ? "moved by hand" : "accepted" };
}

/** A plan for `trueshot repair` as JSON lines: a header, one line per change, and the list of all items. */
export function plan() {
  const pictures = [...collection.look().pictures.values()];
  const { kind, root, within } = rooted(pictures);
  const changes = [];
  let [wrong, left] = [0, 0];
  for (const picture of pictures) {
    const verdict = collection.verdictOf(picture.id);
    const what = change(picture, verdict);
    if (what && what.to !== picture.origin) changes.push({ item: within(picture.path), from: picture.origin, ...what });
    wrong += what ? 1 : (verdict?.p_wrong ?? 0);
    left += what ? 0 : (verdict?.p_wrong ?? 0);
  }
  const right = (count) => Number((1 - count / Math.max(1, pictures.length)).toFixed(6));
  const header = { format: "trueshot-plan/1", kind, root, items: pictures.length, accuracy: right(wrong), accuracy_after: right(left) };
  const listing = pictures.map((picture) => ({ item: within(picture.path), ...(picture.problem ? {} : { class: picture.origin }), size: picture.blob.size }));
  return [header, ...changes, { listing }].map((line) => `${JSON.stringify(line)}\n`).join("");
}

export const savePlan = () => save("trueshot-plan.jsonl", new Blob([plan()], { type: "application/jsonl" }));

export const saveJson = () => save("trueshot-report.json", new Blob([JSON.stringify(collection.look().found, null, 2)], { type: "application/json" }));

export async function saveClassifier() {
  const id = await collection.classifier();
  save("trueshot-classifier.safetensors", await server.download(id));
}

const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

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

/** Saves a report as one self-contained HTML file. */
export async function saveHtml() {
  const state = collection.look();
  const parts = [];
  for (const place of state.classes) {
    parts.push(`<h2>${escaped(place)}</h2><ul>`);
    for (const picture of collection.inClass(place)) {
      const { style, text } = standing(picture, collection.verdictOf(picture.id));
      parts.push(`<li class="${style}"><img alt="${escaped(picture.name)}" src="${await thumbnail(picture.blob)}">${escaped(picture.path)}<br><strong>${escaped(text)}</strong></li>`);
    }
    parts.push("</ul>");
  }
  const section = (title, lines) => (lines.length > 0 ? `<h2>${title}</h2>${lines.map((line) => `<p>${escaped(line)}</p>`).join("")}` : "");
  if (state.found) {
    parts.push(section("Label conflicts: the same item with different labels", conflicts(state.found)));
    parts.push(section("Image problems", imageProblems(state.found, [...state.pictures.values()])));
  }
  const expected = state.found ? `<p>${state.found.items.length} images of ${state.found.classes.length} classes; ${aboutWrong(state.found.expected_wrong)}.</p>` : "";
  const page = `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>trueshot report</title><style>${STYLE}</style></head><body><h1>trueshot report</h1>${expected}${parts.join("")}</body></html>`;
  save("trueshot-report.html", new Blob([page], { type: "text/html" }));
}
