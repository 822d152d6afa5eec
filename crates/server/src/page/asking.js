// Predictions for query images: chosen, dropped, pasted, or taken with the camera.

import * as collection from "./collection.js";
import { element, percent } from "./drawing.js";
import * as server from "./server.js";

/** From this probability of "none of these" on, it is shown instead of a class. */
const REFUSED_FROM = 0.5;

/** Predicts the classes of files and shows them, the latest first. */
export async function ask(files, say) {
  const list = document.getElementById("answers");
  say(files.length === 1 ? "Predicting the class of the image" : `Predicting the classes of ${files.length} images`);
  const [{ pictures }, id] = await Promise.all([server.embed(files), collection.classifier()]);
  const read = pictures.filter(({ row }) => row);
  const { predictions } = read.length > 0 ? await server.predict(id, read.map(({ row }) => row)) : { predictions: [] };
  const answers = pictures.map((picture) => (picture.row ? predictions.shift() : { error: picture.error }));
  list.prepend(...answers.map((answer, place) => card(files[place], answer)));
  say("");
}

function card(file, answer) {
  const isRefused = answer.unknown >= REFUSED_FROM;
  const image = element("img", { src: URL.createObjectURL(file), alt: file.name });
  const words = answer.error
    ? [element("p", { textContent: `Cannot be read: ${answer.error}` })]
    : [
        element("p", { className: "class-name", textContent: isRefused ? "none of these" : answer.class }),
        element("p", { textContent: `Probability: ${percent(isRefused ? answer.unknown : answer.probability)}` }),
        bar(isRefused ? answer.unknown : answer.probability),
        element("p", {
          className: "unknown",
          textContent: isRefused ? `Most similar class: ${answer.class} (${percent(answer.probability)})` : `None of these: ${percent(answer.unknown)}`,
        }),
      ];
  return element("li", { className: `card answer ${isRefused ? "strange" : ""}` }, image, ...words, element("p", { className: "name", textContent: file.name }));
}

function bar(share) {
  const inner = element("span");
  inner.style.width = `${100 * share}%`;
  const outer = element("div", { className: "bar" }, inner);
  outer.setAttribute("aria-hidden", "true");
  return outer;
}

/** Shows the camera button if the browser has access to a camera. */
export function setUpCamera(take, fail) {
  if (!navigator.mediaDevices?.getUserMedia) return;
  const [opener, dialog, video] = ["camera", "camera-dialog", "camera-picture"].map((id) => document.getElementById(id));
  let stream = null;
  opener.hidden = false;
  opener.onclick = async () => {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      return fail("The camera cannot be used. Check that the browser may access it.");
    }
    video.srcObject = stream;
    dialog.showModal();
    await video.play();
  };
  dialog.onclose = () => {
    stream?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
  };
  document.getElementById("camera-close").onclick = () => dialog.close();
  document.getElementById("camera-take").onclick = () => {
    const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      dialog.close();
      if (blob) take([new File([blob], "camera.jpg", { type: "image/jpeg" })]);
    }, "image/jpeg", 0.92);
  };
}
