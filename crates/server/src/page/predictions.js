// Predictions for query images: chosen, dropped, pasted, or taken with the camera.

import { classifier } from "./auditing.js";
import { breakable, byId, element } from "./dom.js";
import { embedOthers } from "./embedding.js";
import * as server from "./server.js";
import { percent } from "./wording.js";

/** From this probability of "none of these" on, it is shown instead of a class, as in the table of `trueshot predict`. */
const REFUSED_FROM = 0.5;

/** Whether an answer of the server says that the image belongs to none of the classes. */
export const isRefused = ({ unknown }) => unknown >= REFUSED_FROM;

/** Predicts the classes of files and shows them, the latest first. */
export async function predictFiles(files, say) {
  say(files.length === 1 ? "Predicting the class of the image" : `Predicting the classes of ${files.length} images`);
  const pictures = files.map((file) => ({ blob: file, name: file.name }));
  const progress = (done) => done > 0 && say(`Embedding images: ${done} of ${files.length}`);
  // Before the classifier: if the server uses another network now, the collection is embedded again.
  await embedOthers(pictures, progress);
  const id = await classifier();
  const { predictions } = await server.predict(id, pictures.map(({ row }) => row).filter(Boolean));
  const answers = pictures.map((picture) => (picture.row ? predictions.shift() : { error: picture.problem }));
  byId("answers").prepend(...answers.map((answer, index) => card(files[index], answer)));
  say("");
}

/** The card of a predicted image: the class, or "none of these", and the second most important probability below it. */
function card(file, answer) {
  const image = element("img", { src: URL.createObjectURL(file), alt: file.name });
  const name = element("p", { className: "name", title: file.name }, ...breakable(file.name));
  if (answer.error) return element("li", { className: "card answer" }, image, element("p", { textContent: `Cannot be read: ${answer.error}` }), name);
  const probability = isRefused(answer) ? answer.unknown : answer.probability;
  const second = isRefused(answer) ? `Most similar class: ${answer.class} (${percent(answer.probability)})` : `None of these: ${percent(answer.unknown)}`;
  return element("li", { className: `card answer ${isRefused(answer) ? "refused" : ""}` }, image,
    element("p", { className: "class-name", textContent: isRefused(answer) ? "none of these" : answer.class }),
    element("p", { textContent: `Probability: ${percent(probability)}` }), bar(probability), element("p", { className: "unknown", textContent: second }), name);
}

/** A bar whose filled part is `probability` of its width. */
function bar(probability) {
  const inner = element("span");
  inner.style.width = `${100 * probability}%`;
  return element("div", { className: "bar", "aria-hidden": "true" }, inner);
}
