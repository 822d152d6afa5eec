// Tests of the page that `trueshot export` writes, opened as a file: its predictions are those of `trueshot predict`,
// and nothing is loaded from other servers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const folder = process.env.PAGES;
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const predictions = readFileSync(`${folder}/kinds.jsonl`, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const CLOSE = 1e-4;
let browser;

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
      "--disable-sync", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    ],
  });
});
after(() => browser.close());

async function open(name = "kinds", options = {}) {
  const page = await browser.newPage({ viewport: { width: 1000, height: 800 }, ...options });
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    if (!/^(file|data|blob):/.test(request.url())) problems.push(`asks for ${request.url()}`);
  });
  await page.goto(`file://${folder}/${name}.html`);
  await page.waitForSelector("body[data-ready]");
  return { page, problems };
}

/** Names and probabilities as the page shows them. */
async function answers(page) {
  await page.waitForSelector("#classes li");
  const rows = await page.$$eval("#classes li", (items) =>
    items.map((item) => [item.querySelector("span").textContent, Number(item.dataset.probability)]));
  return Object.fromEntries(rows);
}

for (const [name, lines] of [["kinds", predictions], ["drawings", null]]) {
  test(`every image has the probabilities of predict: ${name}`, async () => {
    const expected = lines ?? readFileSync(`${folder}/${name}.jsonl`, "utf8").trim().split("\n").map((line) => JSON.parse(line));
    const { page, problems } = await open(name);
    assert.ok(expected.length > 3);
    for (const { item, class: best, unknown, probabilities } of expected) {
      await page.evaluate(() => document.getElementById("classes").replaceChildren());
      await page.setInputFiles("#file", item);
      const found = await answers(page);
      for (const [name, probability] of [...Object.entries(probabilities), ["none of these", unknown]]) {
        assert.ok(Math.abs(found[name] - probability) < CLOSE, `${item}, ${name}: ${found[name]} and ${probability}`);
      }
      const said = await page.textContent("#answer");
      assert.equal(said, unknown >= 0.5 ? "None of these" : best);
      const shown = await page.$$eval("#classes li", (items) => items.map((item) => [Number(item.dataset.probability), item.querySelectorAll("span")[1].textContent]));
      assert.ok(shown.every(([probability, text]) => (text === "0 %") === (probability === 0) && (text === "100 %") === (probability === 1)), `${shown}`);
    }
    assert.deepEqual(problems, []);
    await page.close();
  });
}

test("an image can be pasted and dropped", async () => {
  const { page, problems } = await open();
  const { item, probabilities } = predictions[3];
  const bytes = readFileSync(item).toString("base64");
  for (const kind of ["paste", "drop"]) {
    await page.evaluate(() => document.getElementById("classes").replaceChildren());
    await page.evaluate(([kind, bytes]) => {
      const data = new DataTransfer();
      const content = Uint8Array.from(atob(bytes), (character) => character.charCodeAt(0));
      data.items.add(new File([content], "image.bmp", { type: "image/bmp" }));
      const event = kind === "paste"
        ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
        : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
      document.body.dispatchEvent(event);
    }, [kind, bytes]);
    const found = await answers(page);
    for (const [name, probability] of Object.entries(probabilities)) {
      assert.ok(Math.abs(found[name] - probability) < CLOSE, `${kind}: ${name}`);
    }
  }
  assert.deepEqual(problems, []);
  await page.close();
});

test("a file that is not an image is refused, and the next image is classified", async () => {
  const { page } = await open();
  await page.setInputFiles("#file", { name: "notes.png", mimeType: "image/png", buffer: Buffer.from("no image") });
  await page.waitForSelector("#problem:visible");
  assert.equal(await page.textContent("#problem"), "notes.png is not an image that this browser can read.");
  await page.setInputFiles("#file", predictions[0].item);
  await answers(page);
  assert.ok(await page.locator("#problem").isHidden());
  await page.close();
});

test("the camera is classified until it is stopped", async () => {
  const { page, problems } = await open();
  await page.getByRole("button", { name: "Use the camera" }).click();
  const found = await answers(page);
  const sum = Object.values(found).reduce((sum, value) => sum + value, 0);
  assert.ok(Math.abs(sum - 1) < 1e-4, `they sum to ${sum}`);
  await page.getByRole("button", { name: "Stop the camera" }).click();
  assert.ok(await page.locator("#video").isHidden());
  assert.deepEqual(problems, []);
  await page.close();
});

test("a camera that is allowed after an image was given is turned off", async () => {
  const { page, problems } = await open();
  await page.evaluate(() => {
    const allowed = new Promise((done) => { window.allow = done; });
    const getUserMedia = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    window.streams = [];
    navigator.mediaDevices.getUserMedia = async (wanted) => {
      await allowed;
      const stream = await getUserMedia(wanted);
      window.streams.push(stream);
      return stream;
    };
  });
  const button = page.getByRole("button", { name: "Use the camera" });
  await button.click();
  await button.click();
  await page.setInputFiles("#file", predictions[0].item);
  await answers(page);
  await page.evaluate(() => window.allow());
  const areOff = () => page.evaluate(() => window.streams.length === 2 && window.streams.every((stream) => stream.getTracks().every(({ readyState }) => readyState === "ended")));
  for (let tries = 0; tries < 100 && !await areOff(); tries++) await page.waitForTimeout(50);
  assert.ok(await areOff());
  assert.ok(await page.locator("#shown").isVisible());
  assert.deepEqual(problems, []);
  await page.close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`it can be read by everyone, ${colorScheme}`, async () => {
    // The policy of the page forbids scripts of other origins.
    const { page } = await open("kinds", { colorScheme, bypassCSP: true });
    await page.setInputFiles("#file", predictions[0].item);
    await answers(page);
    await page.addScriptTag({ path: axe });
    const { violations } = await page.evaluate(() => window.axe.run());
    assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), []);
    await page.close();
  });
}
