// Tests of the served page: drop images with some wrong labels, see them framed, correct them, predict the class of new
// ones, download the results, reload. Also by keyboard, in dark mode and on a phone.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";
import { dropManyFiles, mockLargeServer } from "./large_collection.mjs";

const server = process.env.SERVER;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let browser;
const launching = {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
};

before(async () => { browser = await chromium.launch(launching); });
after(() => browser.close());

/** Waits until a condition holds. Playwright's waitForFunction evaluates strings, which the page's policy forbids. */
async function until(page, holds) {
  for (let tries = 0; tries < 600; tries++) {
    if (await page.evaluate(holds)) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail(`never true: ${holds}; the page shows: ${await page.textContent("#status")} ${await page.textContent("#alert")}`);
}

/** Opens a page, and collects its errors and its requests to other servers. The window is high enough for all cards of a
 * small collection. */
async function open(options = {}, address = server, isReady = () => document.getElementById("about").textContent !== "") {
  const context = await browser.newContext({ viewport: { width: 1100, height: 2400 }, acceptDownloads: true, permissions: ["camera"], ...options });
  const page = await context.newPage();
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(address) && !/^(data|blob):/.test(request.url())) problems.push(`requests ${request.url()}`);
  });
  page.on("dialog", (dialog) => dialog.accept());
  await page.goto(address);
  await until(page, isReady);
  return { context, page, problems };
}

/** A drawing as a PNG, made in the browser: the strokes of a class with small random displacements. */
async function drawing(page, kind, number) {
  const base64 = await page.evaluate(([kind, number]) => {
    let seed = number * 7919 + kind.length * 104729 + 1;
    const shake = (size) => { seed = (seed * 16807) % 2147483647; return (seed / 2147483647 - 0.5) * size; };
    const canvas = Object.assign(document.createElement("canvas"), { width: 105, height: 105 });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "white";
    pen.fillRect(0, 0, 105, 105);
    pen.lineWidth = 4;
    const line = (...points) => { pen.beginPath(); points.forEach(([x, y]) => pen.lineTo(x + shake(9), y + shake(9))); pen.stroke(); };
    if (kind === "ring") { pen.beginPath(); pen.ellipse(52 + shake(9), 52 + shake(9), 34 + shake(8), 34 + shake(8), 0, 0, 7); pen.stroke(); }
    if (kind === "cross") { line([20, 20], [85, 85]); line([85, 20], [20, 85]); }
    if (kind === "comb") { line([15, 85], [90, 85]); [20, 37, 54, 71, 88].forEach((x) => line([x, 85], [x, 25])); }
    return canvas.toDataURL("image/png").split(",")[1];
  }, [kind, number]);
  return Buffer.from(base64, "base64");
}

const kinds = ["ring", "cross", "comb"];
/** Six drawings per class; the first of each class is in the folder of the next one. */
async function noisySet(page) {
  const files = [];
  for (const [place, kind] of kinds.entries()) {
    for (let number = 0; number < 6; number++) {
      const folder = kinds[number === 0 ? (place + 1) % 3 : place];
      files.push({ path: `set/${folder}/${kind}-${number}.png`, bytes: (await drawing(page, kind, number)).toString("base64") });
    }
  }
  files.push({ path: "set/ring/notes.txt", bytes: "aGVsbG8=" }, { path: "set/comb/broken.png", bytes: "iVBORw0KGgo=" });
  return files;
}

/** Drops a folder: a script cannot create real file system entries, so the part of their API that the page uses is mocked. */
function dropFolder(page, selector, files) {
  return page.evaluate(([selector, files]) => {
    const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const tree = {};
    for (const { path, bytes: text } of files) {
      const parts = path.split("/");
      let at = tree;
      parts.slice(0, -1).forEach((part) => { at = at[part] ??= {}; });
      at[parts.at(-1)] = new File([bytes(text)], parts.at(-1), { type: path.endsWith("png") ? "image/png" : "text/plain" });
    }
    const entry = (name, content) => content instanceof File
      ? { isFile: true, name, file: (done) => done(content) }
      : { isFile: false, name, createReader: () => { let rest = Object.entries(content).map(([name, inner]) => entry(name, inner)); return { readEntries: (done) => { done(rest.splice(0, 2)); } }; } };
    const items = Object.entries(tree).map(([name, content]) => ({ kind: "file", webkitGetAsEntry: () => entry(name, content) }));
    const event = new Event("drop", { bubbles: true, cancelable: true });
    event.dataTransfer = { types: ["Files"], items, getData: () => "" };
    document.querySelector(selector).dispatchEvent(event);
  }, [selector, files]);
}

const settled = (page) => until(page, () => /suspect;/.test(document.getElementById("status").textContent));
const framed = (page) => page.$$eval(".card.suspect .name", (names) => names.map((name) => name.textContent).sort());
const placeOf = (page, name) => page.evaluate((name) => [...document.querySelectorAll(".class .name")].find((found) => found.textContent === name).closest(".class").dataset.class, name);
const card = (page, name) => page.locator(".class .card", { has: page.locator(".name", { hasText: name }) });

async function faults(page) {
  // The policy forbids scripts that are not the server's, so axe is injected through the debugger.
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run());
  return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).slice(0, 3).join(" | ")}`);
}

async function download(page, id) {
  const [taken] = await Promise.all([page.waitForEvent("download"), page.click(id)]);
  return { name: taken.suggestedFilename(), text: readFileSync(await taken.path()) };
}

describe("the served page", () => {
  test("frames wrong labels, accepts corrections, predicts, and is the same after a reload", async () => {
    const { page, problems, context } = await open();
    assert.deepEqual(await faults(page), []);
    await dropFolder(page, "#intake", await noisySet(page));
    await settled(page);
    assert.deepEqual(await framed(page), ["comb-0.png", "cross-0.png", "ring-0.png"]);
    assert.match(await page.textContent("#status"), /3 labels are suspect/);
    assert.match(await page.textContent("#skipped summary"), /1 file was skipped/);
    assert.match(await card(page, "broken.png").locator(".verdict").textContent(), /Cannot be read/);
    assert.match(await card(page, "ring-0.png").locator(".verdict").textContent(), /Wrong: .*\s%. Belongs to ring/);
    assert.deepEqual(await faults(page), []);

    // One label is corrected with its button, one with the menu, and one by dragging.
    await card(page, "ring-0.png").locator(".accept").click();
    await until(page, () => /2 labels are suspect/.test(document.getElementById("status").textContent));
    assert.equal(await placeOf(page, "ring-0.png"), "ring");
    await card(page, "cross-0.png").locator(".move").focus();
    await page.keyboard.press("Enter");
    await page.keyboard.type("cro");
    assert.deepEqual(await page.$$eval("#chooser-list li", (choices) => choices.map((choice) => choice.textContent)), ["cross", "New class: cro"]);
    assert.deepEqual(await faults(page), []);
    await page.keyboard.press("Enter");
    await until(page, () => /1 label is suspect/.test(document.getElementById("status").textContent));
    assert.equal(await placeOf(page, "cross-0.png"), "cross");
    assert.equal(await page.evaluate(() => document.activeElement.closest(".class")?.dataset.class), "comb", "the focus stays in the class, on the next card");
    await page.dragAndDrop(".class[data-class=ring] .card.suspect img", ".class[data-class=comb] header");
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    assert.equal(await placeOf(page, "comb-0.png"), "comb");

    const asked = await drawing(page, "cross", 99);
    await page.setInputFiles("#query-input", { name: "new.png", mimeType: "image/png", buffer: asked });
    await page.waitForSelector(".answer");
    assert.match(await page.textContent(".answer .class-name"), /^cross/);
    const file = await download(page, "#take-classifier");
    assert.equal(file.name, "trueshot-classifier.safetensors");
    assert.ok(file.text.includes("trueshot-classifier/2"));

    await page.reload();
    await settled(page);
    assert.match(await page.textContent("#status"), /No label is suspect/);
    assert.equal(await page.locator(".class .card").count(), 19);
    for (const kind of kinds) assert.equal(await placeOf(page, `${kind}-0.png`), kind);
    const broken = await page.$$eval(".class img", (images) => images.filter((image) => image.complete && image.naturalWidth === 0).map((image) => image.closest(".card").querySelector(".name").textContent));
    assert.ok(broken.every((alt) => alt.includes("broken")), `not shown: ${broken}`);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("adds images class by class, makes all planned changes at once, and downloads reports", async () => {
    const { page, problems, context } = await open();
    for (const kind of kinds) {
      await page.click("#new-class");
      await page.fill("#name-input", kind);
      await page.keyboard.press("Enter");
      await page.waitForSelector(`.class[data-class=${kind}]`);
    }
    for (const [place, kind] of kinds.entries()) {
      const files = [];
      for (let number = 0; number < 6; number++) {
        const truly = number === 0 ? kinds[(place + 1) % 3] : kind;
        files.push({ name: `${truly}-${number}.png`, mimeType: "image/png", buffer: await drawing(page, truly, number) });
      }
      await page.setInputFiles(`.class[data-class=${kind}] input[type=file]`, files);
    }
    await until(page, () => /3 labels are suspect/.test(document.getElementById("status").textContent));
    // Images that were chosen one by one have no folder that a plan could change.
    assert.equal(await page.isVisible("#take-plan"), false);
    assert.equal(await page.textContent("#take-note"), "18 images without a folder are not in the plan.");
    const report = JSON.parse((await download(page, "#take-json")).text);
    assert.equal(report.items.length, 18);
    const html = (await download(page, "#take-html")).text.toString();
    assert.equal(html.match(/class="suspect"/g).length, 3);
    assert.equal(html.match(/src="data:image\/jpeg/g).length, 18);
    await page.click("#accept-all");
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    await page.click("text=Start over");
    await until(page, () => document.querySelectorAll(".class").length === 0);
    await page.reload();
    assert.equal(await page.locator(".class").count(), 0);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("predicts the class of pasted images and of camera images", async () => {
    const { page, problems, context } = await open();
    await dropFolder(page, "body", await noisySet(page));
    await settled(page);
    const asked = (await drawing(page, "ring", 77)).toString("base64");
    await page.evaluate((text) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0))], "pasted.png", { type: "image/png" }));
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true }));
    }, asked);
    await page.waitForSelector(".answer");
    assert.match(await page.textContent(".answer .class-name"), /^ring/);
    await page.click("#camera");
    await until(page, () => document.getElementById("camera-picture").videoWidth > 0);
    await page.click("#camera-take");
    await until(page, () => document.querySelectorAll(".answer").length === 2);
    // Many images are sent in several requests. The classifier for the labels before is deleted from the server.
    const sent = [];
    page.on("request", (request) => sent.push(`${request.method()} ${new URL(request.url()).pathname}`));
    await page.click("#accept-all");
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    const many = [];
    for (let number = 50; number < 70; number++) many.push({ name: `many-${number}.png`, mimeType: "image/png", buffer: await drawing(page, "comb", number) });
    await page.setInputFiles("#query-input", many);
    await until(page, () => document.querySelectorAll(".answer").length === 22);
    assert.equal(await page.locator(".answer .class-name").count(), 22);
    assert.equal(sent.filter((request) => request === "POST /api/v1/embed").length, 3);
    assert.equal(sent.filter((request) => request.startsWith("DELETE /api/v1/classifiers/")).length, 1);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("embeds an image once, audits after every change, and sends confirmed labels as confirmed", async () => {
    const { page, problems, context } = await open();
    const asked = [];
    page.on("request", (request) => request.method() === "POST" && asked.push({ path: new URL(request.url()).pathname, body: request.postData() }));
    const count = (path) => asked.filter((request) => request.path === path).length;
    await dropFolder(page, "#intake", await noisySet(page));
    await settled(page);
    const embedded = count("/api/v1/embed");
    for (const [change, wanted] of [["ring-0.png", 2], ["cross-0.png", 1]]) {
      const before = count("/api/v1/audit");
      await card(page, change).locator(".accept").click();
      await until(page, wanted === 2 ? () => /2 labels are suspect/.test(document.getElementById("status").textContent) : () => /1 label is suspect/.test(document.getElementById("status").textContent));
      assert.ok(count("/api/v1/audit") > before, "the others are audited again");
    }
    await card(page, "comb-0.png").locator(".keep").click();
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    assert.match(await card(page, "comb-0.png").locator(".verdict").textContent(), /Confirmed/);
    const last = JSON.parse(asked.filter((request) => request.path === "/api/v1/audit").at(-1).body);
    assert.equal(last.confirmed.filter(Boolean).length, 1, "the one that was kept");
    assert.equal(count("/api/v1/embed"), embedded, "no image is sent twice");
    assert.deepEqual(problems, []);
    await context.close();
  });

  for (const [kind, width] of [["a desktop", 1100], ["a phone", 390]]) {
    test(`shows the whole class that a suspect image belongs to on ${kind}, also if its name is long`, async () => {
      const { page, problems, context } = await open({ viewport: { width, height: 2400 } });
      const files = await noisySet(page);
      const long = { ring: "004.Groove_billed_Ani", cross: "012.Yellow_headed_Blackbird", comb: "020.Yellow_breasted_Chat" };
      await dropFolder(page, "#intake", files.map(({ path, bytes }) => ({ path: path.replace(/(?<=^set\/)\w+/, (kind) => long[kind]), bytes })));
      await settled(page);
      const cut = await page.$$eval(".class .card.suspect", (cards) => cards.map((card) => {
        const verdict = card.querySelector(".verdict");
        return { text: verdict.textContent, hidden: verdict.scrollHeight - verdict.clientHeight, over: card.querySelector(".doings").getBoundingClientRect().bottom - card.getBoundingClientRect().bottom };
      }));
      assert.equal(cut.length, 3);
      assert.ok(cut.every(({ hidden, over }) => hidden <= 0 && over <= 0), JSON.stringify(cut));
      assert.deepEqual(problems, []);
      await context.close();
    });
  }

  test("shows unsure images with a dashed frame and advice", async () => {
    const { page, problems, context } = await open();
    await page.route("**/api/v1/audit?*", async (route) => {
      const response = await route.fetch();
      const found = await response.json();
      Object.assign(found.items[0], { verdict: "unsure", action: "review", suggested: null, advice: "add more images" });
      await route.fulfill({ response, json: found });
    });
    await dropFolder(page, "#intake", await noisySet(page));
    await settled(page);
    const unsure = page.locator(".class .card.unsure", { has: page.locator(".advice", { hasText: "add more images" }) });
    assert.equal(await unsure.count(), 1);
    assert.match(await unsure.locator(".verdict").textContent(), /Unsure/);
    assert.equal(await unsure.evaluate((card) => getComputedStyle(card).borderTopStyle), "dashed");
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  /** Makes an audit unsure about the images with these names, unless the user has decided about them. */
  async function unsureAbout(page, names) {
    await page.route("**/api/v1/audit?*", async (route) => {
      const response = await route.fetch();
      const found = await response.json();
      for (const item of found.items.filter(({ item, confirmed }) => !confirmed && names.some((name) => item.endsWith(name)))) {
        found.counts[item.action] -= 1;
        found.counts.review += 1;
        Object.assign(item, { verdict: "unsure", action: "review", suggested: null, p_wrong: 0.5 + 0.1 * names.findIndex((name) => item.item.endsWith(name)) });
      }
      await route.fulfill({ response, json: found });
    });
  }

  test("walks through the items to review with the keyboard, and the decisions are in the plan", async () => {
    const { page, problems, context } = await open();
    await unsureAbout(page, ["ring-1.png", "comb-0.png", "cross-3.png", "ring-0.png"]);
    await dropFolder(page, "#intake", await noisySet(page));
    await settled(page);
    assert.match(await page.textContent("#status"), /4 to review/);
    assert.equal(await page.textContent("#review"), "Review 4 items, check 1 planned change");
    assert.match(await page.textContent("#take-plan"), /1 change, 4 to review/);
    await page.click("#review");
    const shown = () => page.textContent("#item-name");
    // The most probably wrong image comes first, with its picture, three classes and the most similar items.
    assert.match(await shown(), /ring-0.png$/);
    assert.equal(await page.textContent("#item-label"), "cross");
    assert.equal(await page.locator("#item-probable button").count(), 3);
    assert.match(await page.textContent("#item-probable"), /ring.*%.*1.*%.*2.*%.*3/);
    assert.equal(await page.locator("#item-nearest li").count(), 5);
    const loaded = await page.$$eval("#item-dialog img", (images) => images.map((image) => image.naturalWidth > 0));
    assert.ok(loaded.every(Boolean), "an image did not load");
    assert.deepEqual(await faults(page), []);

    const ring = await page.$$eval("#item-probable button span:first-child", (names) => names.findIndex((name) => name.textContent === "ring"));
    await page.keyboard.press(String(ring + 1));
    assert.match(await shown(), /cross-3.png$/);
    // Keys also work after a click on the picture.
    await page.click("#item-picture");
    assert.equal(await page.textContent("#item-progress"), "2 of 5");
    await page.keyboard.press("q");
    assert.match(await shown(), /comb-0.png$/);
    // Nothing is planned for items to review: Enter decides nothing and shows the next one.
    assert.match(await page.textContent("#item-help"), /^No change is planned: Enter decides nothing and goes to the next image\. K: the label is right\./);
    assert.equal(await page.isVisible("#item-accept"), false);
    await page.keyboard.press("Enter");
    assert.match(await shown(), /ring-1.png$/);
    // A decision can be undone and redone, with both kinds of keys.
    await page.keyboard.press("q");
    await page.keyboard.press("ArrowLeft");
    assert.match(await shown(), /ring-1.png$/);
    assert.equal(await page.textContent("#item-progress"), "4 of 5");
    await page.keyboard.press("k");
    await page.keyboard.press("Control+z");
    assert.match(await shown(), /ring-1.png$/);
    await page.keyboard.press("Control+Shift+Z");
    assert.match(await shown(), /cross-0.png$/);
    await page.keyboard.press("ArrowRight");
    await until(page, () => /3 decisions made, 2 put off/.test(document.getElementById("item-done").textContent));
    await page.keyboard.press("Escape");
    await until(page, () => /1 to review/.test(document.getElementById("status").textContent));
    assert.match(await page.textContent("#status"), /17 items of 3 classes: 1 to relabel, 1 to review, 15 to keep \(2 confirmed\)/);
    assert.equal(await placeOf(page, "ring-0.png"), "ring");
    assert.equal(await page.locator("#quarantine .card").count(), 1);
    assert.match(await page.textContent("#take-plan"), /3 changes, 1 to review/);

    const text = (await download(page, "#take-plan")).text.toString();
    const lines = text.trim().split("\n").filter((line) => !line.startsWith("#")).map((line) => JSON.parse(line));
    const changes = Object.fromEntries(lines.slice(1, -1).map((change) => [change.item, change.to ?? "quarantine"]));
    assert.deepEqual(changes, { "cross/ring-0.png": "ring", "cross/cross-3.png": "quarantine", "comb/cross-0.png": "cross" });
    assert.match(text, /\n# \{"item":"ring\/comb-0.png"/);
    const confirmed = (await download(page, "#take-confirmed")).text.toString().trim().split("\n").map((line) => JSON.parse(line));
    assert.deepEqual(confirmed, [{ item: "ring/ring-1.png", given: "ring" }]);

    // Everything survives a reload; an image in quarantine can be put back.
    await page.reload();
    await until(page, () => /1 to review/.test(document.getElementById("status").textContent));
    assert.equal(await page.locator("#quarantine .card").count(), 1);
    await page.click("#quarantine button:has-text('Put back')");
    await until(page, () => /18 items/.test(document.getElementById("status").textContent));
    assert.equal(await placeOf(page, "cross-3.png"), "cross");
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("reviews with the mouse, another class included, and then the planned changes", async () => {
    const { page, problems, context } = await open();
    await unsureAbout(page, ["ring-1.png"]);
    await dropFolder(page, "#intake", await noisySet(page));
    await settled(page);
    await page.click("#new-class");
    await page.fill("#name-input", "new");
    await page.keyboard.press("Enter");
    await page.click("#review");
    await page.click("#item-move");
    await page.fill("#chooser-input", "ne");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await until(page, () => document.getElementById("item-progress").textContent === "2 of 4");
    assert.match(await page.textContent("#item-verdict"), /Planned: move to/);
    await page.click("#item-keep");
    await until(page, () => document.getElementById("item-progress").textContent === "3 of 4");
    // Enter makes the planned change; a key that is held down makes one change only.
    const accepted = (await page.textContent("#item-name")).split("/").at(-1);
    const to = (await page.textContent("#item-verdict")).match(/^Planned: move to (\w+)\./)[1];
    assert.equal(await page.textContent("#item-accept"), `Move to ${to} Enter`);
    assert.equal(await page.evaluate(() => document.activeElement.id), "item-accept");
    assert.match(await page.textContent("#item-help"), /^Enter makes the planned change\. K: the label is right\./);
    await page.keyboard.down("Enter");
    await page.keyboard.down("Enter");
    await page.keyboard.up("Enter");
    await until(page, () => document.getElementById("item-progress").textContent === "4 of 4");
    await page.click("#item-close");
    assert.equal(await placeOf(page, accepted), to);
    assert.equal(await placeOf(page, "ring-1.png"), "new");
    assert.equal(await page.evaluate(() => document.activeElement.id), "review");
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  /** Drops the noisy set and waits for its audit. */
  async function openWithImages(options) {
    const opened = await open(options);
    await dropFolder(opened.page, "#intake", await noisySet(opened.page));
    await settled(opened.page);
    return opened;
  }
  const classNames = (page) => page.$$eval(".class", (sections) => sections.map((section) => section.dataset.class));
  /** Every image with its class, including those in quarantine, as one text. */
  const labels = (page) => page.evaluate(() => [...document.querySelectorAll(".class, #quarantine")].map((section) =>
    `${section.dataset.class ?? "quarantine"}: ${[...section.querySelectorAll(".name")].map((name) => name.textContent).sort().join(" ")}`).join("\n"));
  const classMenu = async (page, name, entry) => {
    await page.click(`.class[data-class="${name}"] .menu summary`);
    await page.click(`.class[data-class="${name}"] .menu button:has-text("${entry}")`);
  };
  const pressed = async (page, keys) => { await page.keyboard.press(keys); await page.waitForTimeout(50); };

  test("undoes and redoes every kind of change", async () => {
    const { page, problems, context } = await openWithImages();
    const changes = [
      ["move ring-0.png to ring", () => card(page, "ring-0.png").locator(".accept").click()],
      ["keep comb-0.png", () => card(page, "comb-0.png").locator(".keep").click()],
      ["quarantine ring-1.png", async () => { await card(page, "ring-1.png").locator(".open").focus(); await page.keyboard.press("q"); }],
      ["put back ring-1.png", () => page.click("#quarantine button:has-text('Put back')")],
      ["remove ring-2.png", async () => { await card(page, "ring-2.png").locator(".open").focus(); await page.keyboard.press("Delete"); }],
      ["rename comb to brush", async () => { await classMenu(page, "comb", "Rename"); await page.fill("#name-input", "brush"); await page.keyboard.press("Enter"); }],
      ["merge ring into cross", async () => { await classMenu(page, "ring", "Merge"); await page.fill("#chooser-input", "cross"); await page.keyboard.press("Enter"); }],
      ["add the class new", async () => { await page.click("#new-class"); await page.fill("#name-input", "new"); await page.keyboard.press("Enter"); }],
      ["remove the class brush and 7 images", () => classMenu(page, "brush", "Remove class")],
    ];
    const states = [await labels(page)];
    for (const [words, change] of changes) {
      await change();
      await page.waitForSelector(`#undo[title="Undo: ${words}"]`, { state: "attached" });
      states.push(await labels(page));
    }
    assert.deepEqual(await classNames(page), ["cross", "new"]);
    for (let at = changes.length - 1; at >= 0; at--) {
      if (at % 2) await page.click("#undo");
      else await page.keyboard.press("Control+z");
      await page.waitForTimeout(50);
      assert.equal(await labels(page), states[at], `undo: ${changes[at][0]}`);
    }
    assert.ok(await page.isDisabled("#undo"));
    for (let at = 0; at < changes.length; at++) {
      await pressed(page, at % 2 ? "Control+Shift+Z" : "Control+y");
      assert.equal(await labels(page), states[at + 1], `redo: ${changes[at][0]}`);
    }
    assert.ok(await page.isDisabled("#redo"));
    // Removed images are restored with their files, even after a reload.
    for (let at = 0; at < changes.length; at++) await pressed(page, "Control+z");
    await settled(page);
    await page.reload();
    await settled(page);
    assert.equal(await labels(page), states[0]);
    assert.match(await page.textContent("#status"), /3 labels are suspect/);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("removes a class that has an image in quarantine", async () => {
    const { page, problems, context } = await openWithImages();
    await card(page, "ring-1.png").locator(".open").focus();
    await pressed(page, "q");
    await classMenu(page, "ring", "Remove class");
    await page.waitForSelector('#undo[title="Undo: remove the class ring and 6 images"]', { state: "attached" });
    assert.deepEqual(await classNames(page), ["comb", "cross"]);
    assert.equal(await page.isVisible("#quarantine"), false);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("embeds an image whose removal is undone during the embedding", async () => {
    const { page, problems, context } = await open();
    const waiting = [];
    await page.route("**/api/v1/embed", async (route) => {
      if (waiting.push(null) > 1) await new Promise((done) => { waiting[waiting.length - 1] = done; });
      await route.continue();
    });
    const batch = async (number) => { while (!waiting[number - 1]) await page.waitForTimeout(20); };
    await dropFolder(page, "#intake", await noisySet(page));
    await batch(2);
    await card(page, "ring-5.png").locator(".open").focus();
    await pressed(page, "Delete");
    waiting[1]();
    await batch(3);
    await pressed(page, "Control+z");
    waiting[2]();
    await settled(page);
    assert.match(await page.textContent("#status"), /^18 items/);
    assert.doesNotMatch(await card(page, "ring-5.png").locator(".verdict").textContent(), /Waiting/);
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("embeds an image that was removed while its folder was being stored and restored afterwards", async () => {
    const { page, problems, context } = await open();
    // Transactions of the database seem to take until `finishStoring` is called.
    await page.evaluate(() => {
      const stored = new Promise((done) => { window.finishStoring = done; });
      Object.defineProperty(IDBTransaction.prototype, "oncomplete", { set(done) { this.addEventListener("complete", () => stored.then(done)); } });
    });
    await dropFolder(page, "#intake", await noisySet(page));
    await card(page, "ring-5.png").locator(".open").focus();
    await pressed(page, "Delete");
    assert.equal(await card(page, "ring-5.png").count(), 0);
    await page.evaluate(() => window.finishStoring());
    await settled(page);
    assert.match(await page.textContent("#status"), /^17 items/);
    await pressed(page, "Control+z");
    await until(page, () => /^18 items/.test(document.getElementById("status").textContent));
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("restores a removed image when its folder is dropped again", async () => {
    const { page, problems, context } = await openWithImages();
    const files = await noisySet(page);
    const listed = async () => {
      const { listing } = JSON.parse((await download(page, "#take-plan")).text.toString().trim().split("\n").at(-1));
      return listing.map(({ item }) => item).sort();
    };
    const all = await listed();
    for (let round = 0; round < 2; round++) {
      await card(page, "ring-5.png").locator(".open").focus();
      await pressed(page, "Delete");
      await until(page, () => /^17 items/.test(document.getElementById("status").textContent));
      assert.deepEqual(await listed(), all, "a removed file is listed once");
      await dropFolder(page, "#intake", files);
      await until(page, () => /^18 items/.test(document.getElementById("status").textContent));
    }
    await pressed(page, "Control+z");
    await settled(page);
    assert.equal(await card(page, "ring-5.png").count(), 1);
    assert.deepEqual(await listed(), all);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("asks for the class of every drop, also if the dialog is open", async () => {
    const { page, problems, context } = await open();
    for (const kind of ["ring", "cross"]) {
      await dropFolder(page, "body", [{ path: `${kind}-1.png`, bytes: (await drawing(page, kind, 1)).toString("base64") }]);
    }
    for (const kind of ["ring", "cross"]) {
      await until(page, () => document.getElementById("chooser-dialog").open && document.getElementById("chooser-input").value === "");
      await page.fill("#chooser-input", kind);
      await page.keyboard.press("Enter");
      await page.waitForSelector(`.class[data-class=${kind}] .card`);
    }
    assert.equal(await placeOf(page, "ring-1.png"), "ring");
    assert.equal(await placeOf(page, "cross-1.png"), "cross");
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("embeds all images again if the server uses another network after a restart", async () => {
    const { page, problems, context } = await openWithImages();
    const sent = [];
    await page.route("**/api/v1/embed", async (route) => {
      const response = await route.fetch();
      sent.push(null);
      await route.fulfill({ response, json: { ...await response.json(), embedder: "another network" } });
    });
    await page.setInputFiles("#query-input", { name: "new.png", mimeType: "image/png", buffer: await drawing(page, "cross", 99) });
    await page.waitForSelector(".answer .class-name");
    assert.match(await page.textContent("#alert"), /^The server now uses the network another network: all images are embedded again\.$/);
    assert.match(await page.textContent("#about"), /another network$/);
    await until(page, () => /^18 items/.test(document.getElementById("status").textContent));
    // The new image, and 19 of the collection in batches of eight.
    assert.equal(sent.length, 4);
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("waits in a second tab until the first one is closed", async () => {
    const { page, problems, context } = await openWithImages();
    const second = await context.newPage();
    await second.goto(server);
    await until(second, () => document.getElementById("other-tab").textContent !== "");
    assert.equal(await second.textContent("#other-tab"), "This page is open in another tab. Close that tab to work here.");
    assert.equal(await second.isVisible("#intake"), false);
    assert.deepEqual(await faults(second), []);
    assert.deepEqual(problems, []);
    await page.close();
    await settled(second);
    assert.equal(await second.textContent("#other-tab"), "");
    assert.equal(await second.locator(".class .card").count(), 19);
    await context.close();
  });

  test("deletes a classifier whose labels changed while it was fitted", async () => {
    const { page, problems, context } = await openWithImages();
    const fits = [], deleted = [];
    page.on("request", (request) => request.method() === "DELETE" && deleted.push(request.url().split("/").at(-1)));
    await page.route("**/api/v1/classifiers", async (route) => {
      const response = await route.fetch();
      fits.push((await response.json()).id);
      if (fits.length === 1) await card(page, "ring-0.png").locator(".accept").click();
      await route.fulfill({ response });
    });
    await page.setInputFiles("#query-input", { name: "new.png", mimeType: "image/png", buffer: await drawing(page, "cross", 99) });
    await page.waitForSelector(".answer .class-name");
    assert.equal(fits.length, 2);
    assert.deepEqual(deleted, [fits[0]]);
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("does not show the result of an audit of earlier labels", async () => {
    const { page, problems, context } = await openWithImages();
    const holding = [];
    await page.route("**/api/v1/audit?*", async (route) => {
      const response = await route.fetch();
      await new Promise((done) => holding.push(done));
      await route.fulfill({ response }).catch(() => {});
    });
    const held = async (count) => { while (holding.length < count) await page.waitForTimeout(20); };
    await page.fill("#certainty", "0.75");
    await page.keyboard.press("Tab");
    await held(1);
    await card(page, "ring-0.png").locator(".accept").evaluate((button) => button.click());
    holding[0]();
    await held(2);
    assert.equal(await placeOf(page, "ring-0.png"), "ring");
    assert.equal(await card(page, "ring-0.png").locator(".verdict").textContent(), "");
    holding[1]();
    await until(page, () => /2 labels are suspect/.test(document.getElementById("status").textContent));
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("shows the error of an audit until one succeeds", async () => {
    const { page, context } = await openWithImages();
    await page.route("**/api/v1/audit?*", (route) => route.fulfill({ status: 422, json: { error: "a made-up error" } }));
    await card(page, "ring-1.png").locator(".open").focus();
    await pressed(page, "q");
    await until(page, () => document.getElementById("alert").textContent === "a made-up error");
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await pressed(page, "Control+z");
    await until(page, () => document.getElementById("alert").textContent === "");
    await context.close();
  });

  test("says so if the browser stores nothing", async () => {
    const { page, problems, context } = await open();
    assert.equal(await page.textContent("#not-stored"), "");
    await context.addInitScript(() => { IDBFactory.prototype.open = () => { throw new Error("private"); }; });
    await page.reload();
    await until(page, () => document.getElementById("not-stored").textContent !== "");
    assert.match(await page.textContent("#not-stored"), /does not store the images: save the plan/);
    await dropFolder(page, "#intake", await noisySet(page));
    await settled(page);
    assert.deepEqual(await faults(page), []);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("stores nothing of images that were removed while they were being stored", async () => {
    const { page, problems, context } = await open();
    await mockLargeServer(page);
    await dropManyFiles(page, { classes: 2, perClass: 500 });
    await page.evaluate(async () => {
      const button = document.getElementById("start-over");
      while (button.hidden) await new Promise((done) => setTimeout(done));
      button.click();
    });
    await until(page, () => document.querySelectorAll(".class").length === 0);
    await page.waitForTimeout(1000);
    await page.reload();
    await until(page, () => document.getElementById("about").textContent !== "");
    await page.waitForTimeout(200);
    assert.equal(await page.locator(".class").count(), 0);
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("accepts only names of classes that repair accepts", async () => {
    const { page, problems, context } = await openWithImages();
    await page.click("#new-class");
    for (const [name, reason] of [["a:b", /colon or a backslash/], ["../a", /name of a folder/], ["_quarantine", /begin with _quarantine/]]) {
      await page.fill("#name-input", name);
      assert.match(await page.textContent("#name-note"), reason);
      assert.ok(await page.isDisabled("#name-dialog button[value=yes]"));
      await page.keyboard.press("Enter");
      assert.ok(await page.isVisible("#name-dialog"));
    }
    assert.deepEqual(await faults(page), []);
    await page.fill("#name-input", "Latin/a");
    assert.equal(await page.textContent("#name-note"), "");
    await page.keyboard.press("Enter");
    await page.waitForSelector('.class[data-class="Latin/a"]');
    // The same for a new class in the list of classes. If the user cancels, the selection stays.
    await card(page, "ring-1.png").locator(".select").check();
    await card(page, "ring-2.png").locator(".select").check();
    await card(page, "ring-1.png").locator(".open").focus();
    await page.keyboard.press("m");
    await page.fill("#chooser-input", "a:b");
    assert.match(await page.textContent("#chooser-empty"), /colon or a backslash/);
    assert.equal(await page.locator("#chooser-list li").count(), 0);
    await page.keyboard.press("Escape");
    await until(page, () => !document.getElementById("chooser-dialog").open);
    assert.equal(await page.textContent("#selection-count"), "2 selected");
    assert.ok(await page.isVisible("#selection"));
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("refuses the folders of splits", async () => {
    const { page, problems, context } = await open();
    const files = (await noisySet(page)).flatMap(({ path, bytes }) => ["train", "val"].map((split) => ({ path: path.replace("set/", `set/${split}/`), bytes })));
    await dropFolder(page, "#intake", files);
    await until(page, () => document.getElementById("alert").textContent !== "");
    assert.match(await page.textContent("#alert"), /^The folders train, val are splits rather than classes\./);
    assert.equal(await page.locator(".class").count(), 0);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("filters by action and by name, with the counts of the audit", async () => {
    const { page, problems, context } = await openWithImages();
    const shown = () => page.$$eval(".class:not([hidden]) .name", (names) => names.map((name) => name.textContent).sort());
    assert.equal(await page.textContent("[data-show=suspect]"), "suspect (3)");
    assert.equal(await page.textContent("[data-show=keep]"), "to keep (15)");
    await page.click("[data-show=suspect]");
    await until(page, () => document.getElementById("shown").textContent === "3 of 19 shown");
    assert.deepEqual(await shown(), ["comb-0.png", "cross-0.png", "ring-0.png"]);
    assert.equal(await page.getAttribute("[data-show=suspect]", "aria-pressed"), "true");
    await page.fill("#search", "RING-");
    await until(page, () => document.getElementById("shown").textContent === "1 of 19 shown");
    assert.deepEqual(await shown(), ["ring-0.png"]);
    await page.click("[data-show=all]");
    await until(page, () => document.getElementById("shown").textContent === "6 of 19 shown");
    assert.deepEqual(await faults(page), []);
    await page.fill("#search", "");
    await page.click("[data-show=unreadable]");
    assert.deepEqual(await shown(), ["broken.png"]);
    // A corrected image is no longer suspect and disappears from the filtered page.
    await page.click("[data-show=relabel]");
    await card(page, "ring-0.png").locator(".accept").click();
    await until(page, () => document.getElementById("shown").textContent === "2 of 19 shown");
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("enlarges an image with its neighbours, its probable classes and actions", async () => {
    const { page, problems, context } = await openWithImages();
    await card(page, "ring-0.png").locator(".open").click();
    assert.match(await page.textContent("#item-name"), /ring-0.png$/);
    assert.equal(await page.locator("#item-probable button").count(), 3);
    assert.equal(await page.locator("#item-nearest img").count(), 5);
    assert.match(await page.textContent("#item-progress"), /^\d+ of 19$/);
    assert.deepEqual(await faults(page), []);
    // The image stays after a change, and the change can be undone from here.
    await page.keyboard.press("1");
    await until(page, () => document.getElementById("item-label").textContent === "ring");
    assert.equal(await page.textContent("#item-verdict"), "The label is confirmed.");
    await page.keyboard.press("Control+z");
    await until(page, () => document.getElementById("item-label").textContent === "cross");
    await page.keyboard.press("ArrowRight");
    assert.doesNotMatch(await page.textContent("#item-name"), /ring-0.png$/);
    const name = await page.textContent("#item-name");
    await page.keyboard.press("Delete");
    assert.notEqual(await page.textContent("#item-name"), name);
    assert.match(await page.textContent("#item-progress"), /of 18$/);
    await page.keyboard.press("Escape");
    // The card of the last image gets the focus when it is drawn.
    await until(page, () => document.activeElement.matches(".card .open"));
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("selects several images with the mouse and the keyboard, and changes all of them", async () => {
    const { page, problems, context } = await openWithImages();
    const count = () => page.textContent("#selection-count");
    await card(page, "ring-1.png").locator(".open").click({ modifiers: ["Control"] });
    await card(page, "ring-4.png").locator(".open").click({ modifiers: ["Shift"] });
    assert.equal(await count(), "4 selected");
    await card(page, "comb-5.png").locator(".select").check();
    assert.equal(await count(), "5 selected");
    assert.deepEqual(await faults(page), []);
    await page.click("#selection-move");
    await page.fill("#chooser-input", "several");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".class[data-class=several]");
    assert.equal(await page.locator(".class[data-class=several] .card").count(), 5);
    assert.equal(await page.isVisible("#selection"), false);
    await page.keyboard.press("Control+z");
    await until(page, () => !document.querySelector(".class[data-class=several]"));
    assert.equal(await placeOf(page, "comb-5.png"), "comb");

    // By keyboard: Space selects, Shift and an arrow extend, and a key acts on all selected images.
    await card(page, "ring-1.png").locator(".open").focus();
    await page.keyboard.press("Space");
    await page.keyboard.press("Shift+ArrowRight");
    assert.equal(await count(), "2 selected");
    await pressed(page, "q");
    assert.equal(await page.locator("#quarantine .card").count(), 2);
    await page.keyboard.press("Control+z");
    await card(page, "cross-1.png").locator(".open").focus();
    await page.keyboard.press("Control+a");
    assert.equal(await count(), "19 selected");
    await page.click("#selection-keep");
    await until(page, () => /\(18 confirmed\)/.test(document.getElementById("status").textContent));
    await page.keyboard.press("Control+z");
    await card(page, "cross-1.png").locator(".open").focus();
    await page.keyboard.press("Space");
    await pressed(page, "Escape");
    assert.equal(await page.isVisible("#selection"), false);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("merges classes by renaming, and the order of classes never changes otherwise", async () => {
    const { page, problems, context } = await openWithImages();
    assert.deepEqual(await classNames(page), ["comb", "cross", "ring"]);
    await page.click("#accept-all");
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    assert.deepEqual(await classNames(page), ["comb", "cross", "ring"]);
    await classMenu(page, "cross", "Rename");
    await page.fill("#name-input", "ring");
    assert.match(await page.textContent("#name-note"), /The class ring exists: the two classes will be merged/);
    await page.keyboard.press("Enter");
    await until(page, () => /18 items of 2 classes/.test(document.getElementById("status").textContent));
    assert.deepEqual(await classNames(page), ["comb", "ring"]);
    const { text } = await download(page, "#take-plan");
    assert.equal(text.toString().split("\n").filter((line) => /"to":"ring"/.test(line)).length, 7, "six crosses, and the ring that was in the folder of crosses");
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("measures a test set: accuracy, figures per class, and a confusion matrix that opens images", async () => {
    const { page, problems, context } = await openWithImages();
    const files = [];
    for (const kind of kinds) {
      for (let number = 20; number < 24; number++) files.push({ path: `test/${kind}/${kind}-${number}.png`, bytes: (await drawing(page, kind, number)).toString("base64") });
    }
    // One test image in the wrong folder, and one of a class that the classifier does not know.
    files.push({ path: "test/ring/cross-30.png", bytes: (await drawing(page, "cross", 30)).toString("base64") });
    files.push({ path: "test/blank/nothing.png", bytes: (await drawing(page, "nothing", 1)).toString("base64") });
    await dropFolder(page, "#test", files);
    await page.waitForSelector("#test-result:visible");
    assert.match(await page.textContent("#test-summary"), /^Accuracy: 92\s% \(12 of 13\)\./);
    assert.match(await page.textContent("#test-summary"), /1 image of other classes/);
    const rows = await page.$$eval("#test-classes tr", (lines) => lines.map((line) => [...line.children].map((cell) => cell.textContent.replace(/\s/g, " ")).join("|")));
    assert.deepEqual(rows.slice(0, 2), ["class|images|right|recall|precision", "comb|4|4|100 %|100 %"]);
    assert.ok(rows.includes("ring|5|4|80 %|100 %"), rows.join("\n"));
    assert.deepEqual(await faults(page), []);
    await page.click('button[aria-label="1 image: label ring, predicted cross"]');
    assert.deepEqual(await page.$$eval("#test-cell .name", (names) => names.map((name) => name.textContent)), ["cross-30.png"]);
    // A change of labels makes the figures outdated.
    assert.equal(await page.isVisible("#test-again"), false);
    await page.click("#accept-all");
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    await page.click("#test-again");
    await until(page, () => document.getElementById("test-again").hidden);
    assert.match(await page.textContent("#test-summary"), /^Accuracy: 92/);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("counts a test image once, and removes the test set also if it could not be measured", async () => {
    const { page, context } = await openWithImages();
    const files = [];
    for (const kind of kinds) files.push({ path: `test/${kind}/${kind}-20.png`, bytes: (await drawing(page, kind, 20)).toString("base64") });
    await page.route("**/api/v1/classifiers", (route) => route.fulfill({ status: 409, json: { error: "a made-up error" } }));
    await dropFolder(page, "#test", files);
    await until(page, () => document.getElementById("alert").textContent === "a made-up error");
    await page.waitForSelector("#test-clear:visible");
    await page.unrouteAll({ behavior: "ignoreErrors" });
    for (let round = 0; round < 2; round++) {
      const measured = page.waitForResponse("**/predict");
      await dropFolder(page, "#test", files);
      await measured;
      await settled(page);
      assert.match(await page.textContent("#test-summary"), /of 3\)/);
    }
    // A test set that is removed while it is being embedded stays removed.
    await page.click("#test-clear");
    let release;
    await page.route("**/api/v1/embed", async (route) => { await new Promise((done) => { release = done; }); await route.continue(); });
    await dropFolder(page, "#test", files);
    while (!release) await page.waitForTimeout(20);
    await page.click("text=Start over");
    release();
    await page.waitForTimeout(500);
    assert.equal(await page.evaluate(() => document.getElementById("test-clear").hidden), true);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("lists unreadable images with the reason, and tries them again", async () => {
    const { page, problems, context } = await openWithImages();
    assert.equal(await page.textContent("#unreadable summary"), "1 image cannot be read");
    assert.match(await page.textContent("#unreadable ul"), /set\/comb\/broken.png: .+/);
    await page.click("#unreadable summary");
    const sent = page.waitForRequest("**/api/v1/embed");
    await page.click("#read-again");
    await sent;
    await settled(page);
    await page.click("#remove-unreadable");
    await until(page, () => document.getElementById("unreadable").hidden);
    assert.equal(await page.locator(".class .card").count(), 18);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("records frames of the camera into a class while a button or a key is held", async () => {
    const { page, problems, context } = await open();
    await page.click("#new-class");
    await page.fill("#name-input", "room");
    await page.keyboard.press("Enter");
    await page.click(".class[data-class=room] button:has-text('Camera')");
    await until(page, () => document.getElementById("camera-picture").videoWidth > 0);
    assert.deepEqual(await faults(page), []);
    const recorded = (at_least) => page.evaluate((at_least) => parseInt(document.getElementById("camera-hint").textContent, 10) >= at_least, at_least);
    const held = async (count) => { for (let tries = 0; tries < 300 && !await recorded(count); tries++) await page.waitForTimeout(50); };
    await page.hover("#camera-take");
    await page.mouse.down();
    await held(3);
    await page.mouse.up();
    await page.focus("#camera-take");
    await page.keyboard.down("Space");
    await held(5);
    await page.keyboard.up("Space");
    await page.click("#camera-close");
    await until(page, () => document.querySelectorAll(".class[data-class=room] .card").length >= 5);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("keeps only the visible cards of a large collection in the document", async () => {
    const { page, problems, context } = await open({ viewport: { width: 1100, height: 900 } });
    await mockLargeServer(page);
    await dropManyFiles(page, { classes: 10, perClass: 300 });
    await settled(page);
    const inDocument = () => page.locator(".class .card").count();
    assert.ok(await inDocument() < 200, `${await inDocument()} cards`);
    const height = await page.evaluate(() => document.documentElement.scrollHeight);
    assert.ok(height > 50_000, "the page is as high as if all cards were there");
    await page.evaluate(() => document.querySelector(".class[data-class=class-9]").scrollIntoView({ block: "end" }));
    await until(page, () => [...document.querySelectorAll(".class .name")].some((name) => name.textContent === "image-9-299.png"));
    assert.ok(await inDocument() < 200, `${await inDocument()} cards`);
    // Keys reach cards that are not in the document yet.
    await page.locator(".class[data-class=class-9] .card .open").last().focus();
    await page.keyboard.press("Home");
    await until(page, () => document.activeElement.closest(".class")?.dataset.class === "class-0");
    await page.fill("#search", "image-5-7");
    await until(page, () => document.getElementById("shown").textContent === "11 of 3000 shown");
    assert.equal(await page.locator(".class:not([hidden]) .card").count(), 11);
    assert.deepEqual(problems, []);
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  });

  test("plans what the command line plans, at every certainty", async () => {
    const { page, problems, context } = await open();
    const files = (await noisySet(page)).filter(({ path }) => !path.endsWith("broken.png"));
    const folder = mkdtempSync(join(tmpdir(), "trueshot-browser-"));
    for (const { path, bytes } of files) {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), Buffer.from(bytes, "base64"));
    }
    await dropFolder(page, "#intake", files);
    await settled(page);
    const rounded = (change) => [change.item, change.to ?? null, Boolean(change.quarantine), change.p_wrong.toFixed(5)].join(" ");
    const parsed = (text) => {
      const lines = text.trim().split("\n").filter((line) => !line.startsWith("# To"));
      return [lines.filter((line) => line.startsWith('{"item')), lines.filter((line) => line.startsWith("# {"))].map((part) => part.map((line) => rounded(JSON.parse(line.replace("# ", "")))));
    };
    const report = await context.newPage();
    for (const certainty of ["0.75", "0.5", "0.9", "0.99", "1"]) {
      const [plan, json, html] = [join(folder, "plan.jsonl"), join(folder, "audit.json"), join(folder, "audit.html")];
      const arguments_ = ["audit", join(folder, "set"), "--backbone", "omniglot-conv4", "--no-cache", "--certainty", certainty, "--plan", plan, "--json", json, "--html", html];
      const table = execFileSync(process.env.TRUESHOT_BIN, arguments_, { stdio: ["ignore", "pipe", "ignore"] }).toString().replaceAll("\n", " ");
      const found = JSON.parse(readFileSync(json, "utf8"));
      await page.fill("#certainty", certainty);
      await page.keyboard.press("Tab");
      await page.waitForTimeout(200);
      await settled(page);
      const shown = await page.textContent("#status");
      for (const sentence of shown.split(". ")) assert.ok(table.toLowerCase().includes(sentence.replace(/\.$/, "").toLowerCase()), `${certainty}: '${sentence}' is not in ${table}`);
      const ours = JSON.parse((await download(page, "#take-json")).text);
      assert.deepEqual(ours.counts, found.counts);
      await report.goto(`file://${html}`);
      assert.equal(await page.textContent("#review"), await report.textContent("#review-open"), "the report says the same");
      assert.ok(Math.abs(ours.expected_wrong - found.expected_wrong) < 1e-5);
      assert.deepEqual(parsed((await download(page, "#take-plan")).text.toString()), parsed(readFileSync(plan, "utf8")), certainty);
    }
    rmSync(folder, { recursive: true, force: true });
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("takes the same folders in folders as classes as the command line, and repair accepts the plan", async () => {
    const { page, problems, context } = await open();
    const parents = { ring: "round/ring", cross: "straight/cross", comb: "straight/comb" };
    const files = (await noisySet(page)).map(({ path, bytes }) => ({ path: path.replace(/(?<=^set\/)\w+/, (kind) => parents[kind]), bytes }));
    const folder = mkdtempSync(join(tmpdir(), "trueshot-browser-"));
    for (const { path, bytes } of files) {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), Buffer.from(bytes, "base64"));
    }
    await dropFolder(page, "#intake", files);
    await settled(page);
    assert.deepEqual(await classNames(page), Object.values(parents).sort());
    const plan = join(folder, "trueshot-plan.jsonl");
    writeFileSync(plan, (await download(page, "#take-plan")).text);
    const repaired = execFileSync(process.env.TRUESHOT_BIN, ["repair", plan, "--root", join(folder, "set")], { encoding: "utf8" });
    assert.match(repaired, /3 to relabel, 0 to quarantine, 0 to review/);
    rmSync(folder, { recursive: true, force: true });
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("saves a plan that repair accepts, whatever else is in the folder, and refuses if an image has changed", async () => {
    const { page, problems, context } = await open();
    const files = await noisySet(page);
    const { bytes } = files[0];
    // Files that the command line ignores: hidden, in quarantine, and outside of class folders.
    files.push(...["ring/.hidden.png", ".thumbnails/a.png", "_quarantine/ring/b.png", "loose.png"].map((path) => ({ path: `set/${path}`, bytes })));
    const folder = mkdtempSync(join(tmpdir(), "trueshot-browser-"));
    const root = join(folder, "set");
    for (const { path, bytes: content } of files) {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), Buffer.from(content, "base64"));
    }
    await dropFolder(page, "#intake", files);
    await settled(page);
    assert.deepEqual(await classNames(page), ["comb", "cross", "ring"]);
    assert.match(await page.textContent("#skipped ul"), /set\/loose.png: not in the folder of a class/);
    const plan = join(folder, "trueshot-plan.jsonl");
    const repair = async () => {
      writeFileSync(plan, (await download(page, "#take-plan")).text);
      return execFileSync(process.env.TRUESHOT_BIN, ["repair", plan, "--root", root], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    };
    assert.match(await repair(), /3 to relabel, 0 to quarantine, 0 to review/);
    // Images that were removed from the page are still in the folder, even after a reload.
    await page.click("#unreadable summary");
    await page.click("#remove-unreadable");
    await until(page, () => document.getElementById("unreadable").hidden);
    assert.match(await repair(), /3 to relabel/);
    await page.reload();
    await settled(page);
    assert.equal(await page.locator(".class .card").count(), 18);
    assert.match(await repair(), /3 to relabel/);
    // Only the image that was removed is added again; a single file has no place in the plan.
    await dropFolder(page, "#intake", files);
    await until(page, () => /^20 files were skipped/.test(document.querySelector("#skipped summary").textContent));
    assert.match(await page.textContent("#skipped ul"), /set\/ring\/ring-1.png: already on the page/);
    await page.setInputFiles(".class[data-class=ring] input[type=file]", { name: "single.png", mimeType: "image/png", buffer: await drawing(page, "ring", 40) });
    await until(page, () => /19 items of 3 classes/.test(document.getElementById("status").textContent));
    assert.equal(await page.locator(".class .card").count(), 20);
    assert.match(await repair(), /3 to relabel/);
    assert.match(await page.textContent("#take-note"), /1 image without a folder is not in the plan\.$/);

    const changed = join(root, "ring/ring-1.png");
    const original = readFileSync(changed);
    writeFileSync(changed, "another image");
    await assert.rejects(repair, /1 of another size \(ring\/ring-1.png\)/);
    rmSync(changed);
    await assert.rejects(repair, /1 gone \(ring\/ring-1.png\)/);
    writeFileSync(changed, original);
    writeFileSync(join(root, "ring/new.png"), original);
    await assert.rejects(repair, /1 new \(ring\/new.png\)/);
    rmSync(folder, { recursive: true, force: true });
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("says that the folder is not changed, and how it is", async () => {
    const { page, problems, context } = await openWithImages();
    const command = "trueshot repair trueshot-plan.jsonl --root PATH/TO/set";
    const note = () => page.textContent("#take-note");
    assert.ok((await note()).startsWith(`Your folder is not changed yet: save the plan and run ${command}.`), await note());
    assert.equal(await page.isVisible("#unchanged"), false);
    await page.click("#accept-all");
    await until(page, () => /No label is suspect/.test(document.getElementById("status").textContent));
    assert.equal(await page.textContent("#unchanged"), `3 changes on this page only. Your folder is not changed yet: save the plan and run ${command}`);
    assert.deepEqual(await faults(page), []);
    await download(page, "#take-plan");
    await until(page, () => /^trueshot-plan.jsonl is saved\. Your folder is not changed yet: run trueshot repair/.test(document.getElementById("take-note").textContent));
    // A later change is not in the saved plan.
    await page.click("#undo");
    await until(page, () => /^Your folder is not changed yet: save the plan/.test(document.getElementById("take-note").textContent));
    assert.equal(await page.isVisible("#unchanged"), false);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("quotes the name of the folder in the command for a shell", async () => {
    const { page, problems, context } = await open();
    const files = (await noisySet(page)).map((file) => ({ ...file, path: file.path.replace(/^[^/]+/, "it's $HOME") }));
    await dropFolder(page, "#intake", files);
    await settled(page);
    assert.ok((await page.textContent("#take-note")).includes(`--root 'PATH/TO/it'\\''s $HOME'.`), await page.textContent("#take-note"));
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("is the same after a restart of the browser", async () => {
    const folder = mkdtempSync(join(tmpdir(), "trueshot-browser-"));
    for (const round of ["first", "second"]) {
      const context = await chromium.launchPersistentContext(folder, launching);
      const page = await context.newPage();
      await page.goto(server);
      if (round === "first") await dropFolder(page, "#intake", await noisySet(page));
      await settled(page);
      assert.deepEqual(await framed(page), ["comb-0.png", "cross-0.png", "ring-0.png"], round);
      await context.close();
    }
    rmSync(folder, { recursive: true, force: true });
  });

  test("asks for the token, again if it was wrong", async () => {
    const { page, context } = await open({}, process.env.SERVER_WITH_TOKEN, () => document.getElementById("token-dialog").open);
    for (const [token, note] of [["wrong token of some length", ""], [process.env.TOKEN, "The server refused the last token."]]) {
      await until(page, () => document.getElementById("token-dialog").open);
      assert.equal(await page.textContent("#token-note"), note);
      await page.fill("#token-input", token);
      await page.keyboard.press("Enter");
    }
    await until(page, () => document.getElementById("about").textContent !== "");
    assert.equal(await page.evaluate(() => document.getElementById("token-dialog").open), false);
    await context.close();
  });

  for (const colorScheme of ["light", "dark"]) {
    test(`has no serious accessibility fault, ${colorScheme}, and fits the screen of a phone`, async () => {
      const { page, problems, context } = await open({ colorScheme, viewport: { width: 360, height: 740 }, reducedMotion: "reduce" });
      await dropFolder(page, "#intake", await noisySet(page));
      await settled(page);
      assert.deepEqual(await faults(page), []);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 360, "wider than the screen");
      await page.click("#review");
      await page.waitForSelector("#item:visible");
      assert.deepEqual(await faults(page), []);
      const inside = await page.evaluate(() => { const dialog = document.getElementById("item-dialog"); return dialog.scrollWidth <= dialog.clientWidth && dialog.getBoundingClientRect().right <= 360; });
      assert.ok(inside, "the review is wider than the screen");
      assert.deepEqual(problems, []);
      await context.close();
    });
  }
});
