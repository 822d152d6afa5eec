// The words for counts, probabilities and verdicts: the same as in the reports of the command line.

/** A probability in percent, rounded as in the reports: only exactly 0 and 1 become 0 % and 100 %. The space before the
 * sign does not break the line. */
export function percent(share) {
  if (share >= 0.995 && share < 1) return ">99\u00a0%";
  if (share > 0 && share <= 0.005) return "<1\u00a0%";
  return `${Math.round(100 * share)}\u00a0%`;
}

/** A number with its noun, such as "1 image" or "3 images". */
export const counted = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** The name of one image, or the number of several. */
export const imagesInWords = (pictures) => (pictures.length === 1 ? pictures[0].name : counted(pictures.length, "image"));

/** All actions of an audit, in the order of the reports. */
export const ACTIONS = ["relabel", "quarantine", "review", "keep"];

/** The numbers of items per action, such as "1 to relabel, 3 to review". */
const actions = (counts) => ACTIONS.filter((action) => action === "keep" || counts[action] > 0).map((action) => `${counts[action]} to ${action}`).join(", ");

/** What a review will show, such as "Review 1 item, check 8 planned changes"; empty if there is nothing. */
export function reviewInWords(review, changes) {
  const parts = [];
  if (review > 0) parts.push(`review ${counted(review, "item")}`);
  if (changes > 0) parts.push(`check ${counted(changes, "planned change")}`);
  const text = parts.join(", ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The counts of an audit in two sentences. */
export function summary({ counts, expected_wrong: expected }) {
  const confirmed = counts.confirmed > 0 ? ` (${counts.confirmed} confirmed)` : "";
  const suspect = counts.suspect === 0 ? "No label is suspect" : counts.suspect === 1 ? "1 label is suspect" : `${counts.suspect} labels are suspect`;
  const wrong = Math.round(expected);
  const about = wrong === 0 ? "probably none is wrong" : wrong === 1 ? "about 1 is expected to be wrong" : `about ${wrong} are expected to be wrong`;
  return `${counted(counts.items, "item")} of ${counted(counts.classes, "class", "classes")}: ${actions(counts)}${confirmed}. ${suspect}; ${about}.`;
}

/** The name of a class in an answer of the server, where null stands for none of the classes. */
export const className = (name) => name ?? "none of these";

const encoder = new TextEncoder();

/** Why `trueshot repair` cannot make a folder with the name of a class; empty if it can. */
export function classNameProblem(name) {
  const parts = name.split("/");
  if (/[\\:\0]/.test(name)) return "The name of a class must not contain a colon or a backslash.";
  if (name !== "" && parts.some((part) => ["", ".", ".."].includes(part))) return "Every part of the name between slashes must be the name of a folder.";
  if (name.startsWith("_quarantine")) return "The name of a class must not begin with _quarantine.";
  return parts.some((part) => encoder.encode(part).length > 255) ? "The name is too long for a folder." : "";
}

/** The most probable classes of an image, such as "dog 55 %, none of these 40 %, cat 5 %". */
const probableClasses = ({ probable }) => probable.map(({ class: name, p }) => `${className(name)} ${percent(p)}`).join(", ");

/** The name of an item, with its label unless the name begins with it. */
const named = (item, label) => (item.startsWith(`${label}/`) ? item : `${item} (${label})`);

/** The label conflicts of an audit, one line each. */
export const conflicts = (found) => found.duplicates.filter((pair) => pair.label_conflict).map(({ kind, item, given, other, other_given: label }) =>
  `${named(item, given)} ${kind === "exact" ? "is identical to" : "is nearly identical to"} ${named(other, label)}`);

/** The poor images that an audit found, one line each. */
export const imageProblems = (found) => found.image_problems.map(({ item, kinds }) => `${item}: ${kinds.join(", ")}`);

/** The images that cannot be read, one line each, with the reason. */
export const unreadable = (pictures) => pictures.filter((picture) => picture.problem).map(({ path, problem }) => `${path}: ${problem}`);

/** What the card of an image shows about its verdict: {style (a class of the style sheet), text, advice, canConfirm (whether
 * the user may still confirm the label)}. */
export function standing(picture, verdict) {
  if (picture.problem) return { style: "unreadable", text: `Cannot be read: ${picture.problem}`, canConfirm: false };
  if (picture.confirmed) return { style: "confirmed", text: "Confirmed", canConfirm: false };
  if (!verdict) return { style: "", text: picture.row ? "" : "Waiting", canConfirm: false };
  const wrong = percent(verdict.p_wrong);
  switch (verdict.verdict) {
    case "relabel": return { style: "suspect", text: `Wrong: ${wrong}. Belongs to ${verdict.suggested}`, canConfirm: true };
    case "outlier": return { style: "suspect", text: `Wrong: ${wrong}. None of these`, canConfirm: true };
    case "wrong": return { style: "suspect", text: `Wrong: ${wrong}. Class uncertain`, advice: probableClasses(verdict), canConfirm: true };
    case "unsure": return { style: "unsure", text: `Unsure. Wrong: ${wrong}`, advice: [probableClasses(verdict), verdict.advice].filter(Boolean).join("; "), canConfirm: true };
    default: return { style: "", text: "", canConfirm: false };
  }
}

/** Whether the card of an image has a frame: its label is suspect, or the audit is unsure, or the file cannot be read. */
export const isFlagged = (picture, verdict) => ["suspect", "unsure", "unreadable"].includes(standing(picture, verdict).style);

/** What the audit says about the label of an image, as a sentence. */
export function verdictInWords(picture, verdict) {
  if (picture.problem) return `Cannot be read: ${picture.problem}`;
  if (picture.quarantined) return "In quarantine: it is not audited.";
  if (picture.confirmed) return "The label is confirmed.";
  if (!verdict) return "";
  if (verdict.action === "relabel") return `Planned: move to ${verdict.suggested}.`;
  if (verdict.action === "quarantine") return `Planned: quarantine, ${verdict.verdict === "outlier" ? "it belongs to no class" : "the right class is uncertain"}.`;
  if (verdict.action === "keep") return "The audit keeps this label.";
  return verdict.verdict === "unsure" ? "The audit is unsure." : "Probably wrong, but not certain enough for a change.";
}
