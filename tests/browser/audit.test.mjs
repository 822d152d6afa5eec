// Tests of the page of an audit: suspects are framed, filters work, similar items are shown for mouse and keyboard, a
// review ends in a plan that `trueshot repair` accepts, and nothing is loaded from other servers.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";

const page_url = urlOf("audit.html");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let browser;

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});
after(() => browser.close());

function urlOf(name) {
  return `file://${process.env.PAGES}/${name}`;
}

async function open(options, name = "audit.html") {
  const page = await browser.newPage({ viewport: { width: 1100, height: 900 }, ...options });
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith("file:") && !request.url().startsWith("data:")) problems.push(`asks for ${request.url()}`);
  });
  await page.goto(urlOf(name));
  return { page, problems };
}

for (const colorScheme of ["light", "dark"]) {
  test(`suspects are framed and have a ring on the map, ${colorScheme}`, async () => {
    const { page, problems } = await open({ colorScheme });
    assert.deepEqual(problems, []);
    assert.equal(await page.locator("li.item").count(), 18);
    const framed = await page.$$eval("li.item.relabel .name", (names) => names.map((name) => name.title).sort());
    assert.deepEqual(framed, ["rings/0.bmp", "stripes/0.bmp"]);
    assert.equal(await page.locator(".map .ring").count(), 2);
    const loaded = await page.$$eval("li.item > img", (images) => images.map((image) => image.complete && image.naturalWidth > 0));
    assert.ok(loaded.every(Boolean), "a thumbnail did not load");
    await page.close();
  });
}

describe("the page of an audit", () => {
  test("filters by verdict and by name", async () => {
    const { page } = await open();
    await page.getByRole("button", { name: "suspect (2)" }).click();
    assert.equal(await page.locator("li.item:visible").count(), 2);
    assert.equal(await page.locator("output").textContent(), "2 of 18 shown");
    await page.getByRole("searchbox").fill("rings/0");
    assert.equal(await page.locator("li.item:visible").count(), 1);
    await page.getByRole("button", { name: "all (18)" }).click();
    await page.getByRole("searchbox").fill("");
    assert.equal(await page.locator("li.item:visible").count(), 18);
    await page.close();
  });

  test("names on every filter button the number of items that it shows", async () => {
    const { page } = await open();
    for (const button of await page.locator(".filters button:visible").all()) {
      await button.click();
      const count = Number((await button.textContent()).match(/\((\d+)\)/)[1]);
      assert.equal(await page.locator("li.item:visible").count(), count, await button.textContent());
    }
    assert.match(await page.textContent(".lead"), /18 items of 3 classes: 2 to relabel, 16 to keep\.\s*2 labels are suspect/);
    await page.close();
  });

  test("shows neighbours for the mouse and for the keyboard", async () => {
    const { page } = await open();
    const suspect = page.locator("li.item.relabel").first();
    await suspect.hover();
    assert.equal(await suspect.locator(".near li:visible").count(), 5);
    assert.equal(await suspect.locator(".near img").count(), 5);
    await page.mouse.move(0, 0);
    await suspect.focus();
    assert.ok(await suspect.locator(".near").isVisible());
    await page.keyboard.press("ArrowRight");
    assert.ok(!(await suspect.locator(".near").isVisible()));
    await page.close();
  });

  test("leads from the map to the item", async () => {
    const { page } = await open();
    await page.getByRole("button", { name: /to review/ }).click();
    await page.locator(".map a:has(.ring)").first().click();
    const target = await page.evaluate(() => document.activeElement.className);
    assert.match(target, /item relabel/);
    await page.close();
  });
});

/** Opens the page and the review, which starts with rings/0.bmp or stripes/0.bmp: the two are exchanged. */
async function review(options) {
  const { page, problems } = await open(options);
  await page.getByRole("button", { name: "Check 2 planned changes" }).click();
  return { page, problems, given: () => page.textContent("#review-given"), progress: () => page.textContent("#review-progress") };
}

/** Saves the plan of a page and returns the path of its file. */
async function savedPlan(page) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#review-save")]);
  assert.equal(download.suggestedFilename(), "plan.jsonl");
  const path = `${mkdtempSync(`${process.env.PAGES}/plan-`)}/plan.jsonl`;
  await download.saveAs(path);
  return path;
}

const repair = (...options) => execFileSync(process.env.TRUESHOT_BIN, ["repair", ...options], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });

/** The changes in a plan, without the list of the folder and comments. */
const changes = (path) => readFileSync(path, "utf8").split("\n").filter((line) => line.startsWith('{"item"')).map((line) => JSON.parse(line));

describe("a review", () => {
  test("shows each suspect with its probable classes and most similar items", async () => {
    const { page, problems, progress } = await review();
    assert.equal(await progress(), "1 of 2");
    const first = await page.textContent("#review-name");
    assert.match(first, /^(rings|stripes)\/0\.bmp$/);
    assert.equal(await page.locator("#review-probable button").count(), 3);
    assert.equal(await page.locator("#review-nearest img").count(), 5);
    const size = await page.$eval("#review-picture img", (image) => image.getBoundingClientRect().height);
    assert.ok(size > 200, `the image is ${size} pixels high`);
    await page.keyboard.press("ArrowRight");
    assert.equal(await progress(), "2 of 2");
    assert.notEqual(await page.textContent("#review-name"), first);
    await page.keyboard.press("ArrowLeft");
    assert.equal(await progress(), "1 of 2");
    assert.equal(await page.textContent("#review-name"), first);
    assert.deepEqual(problems, []);
    await page.close();
  });

  test("ends with a plan of the decisions, which repair carries out", async () => {
    const { page, given } = await review();
    const moved = await given();
    await page.keyboard.press("m");
    await page.keyboard.type("che");
    await page.keyboard.press("Enter");
    const kept = await given();
    await page.keyboard.press("k");
    assert.match(await page.textContent("#review-done"), /All 2 decided/);
    await page.keyboard.press("Escape");
    // The user can also decide about an item that the audit keeps.
    await page.locator("li.item[data-action=keep]", { hasText: "3.bmp" }).first().click();
    const quarantined = await page.textContent("#review-name");
    await page.keyboard.press("q");
    assert.ok(!(await page.locator("#review").isVisible()));
    assert.equal(await page.textContent("#review-state"), "3 decisions.");

    const path = await savedPlan(page);
    assert.match(await page.textContent("#review-state"), /1 to relabel, 1 to quarantine, 0 to review/);
    assert.deepEqual(changes(path).map(({ item, from, to, quarantine }) => ({ item, from, to, quarantine })), [
      { item: `${moved}/0.bmp`, from: moved, to: "checks", quarantine: undefined },
      { item: quarantined, from: quarantined.split("/")[0], to: undefined, quarantine: true },
    ]);
    const into = path.replace("plan.jsonl", "clean");
    repair(path, "--into", into);
    assert.equal(readdirSync(`${into}/checks`).length, quarantined.startsWith("checks/") ? 6 : 7);
    assert.ok(!existsSync(`${into}/${moved}/0.bmp`) && existsSync(`${into}/${kept}/0.bmp`));
    assert.ok(!existsSync(`${into}/${quarantined}`) && existsSync(`${into}/_quarantine`));

    const [download] = await Promise.all([page.waitForEvent("download"), page.click("#review-confirmed")]);
    const confirmed = path.replace("plan.jsonl", "confirmed.jsonl");
    await download.saveAs(confirmed);
    const audit = execFileSync(process.env.TRUESHOT_BIN, ["audit", `${process.env.PAGES}/photos`, "--no-cache", "--confirmed", confirmed], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
    assert.match(audit, /\(1 confirmed\)/);
    await page.close();
  });

  test("keeps the planned changes of items without a decision, with their effect", async () => {
    const { page } = await open();
    const untouched = await savedPlan(page);
    assert.equal(changes(untouched).length, 2);
    assert.match(repair(untouched), /2 to relabel, 0 to quarantine, 0 to review; leave-one-out accuracy/);
    await page.getByRole("button", { name: "Check 2 planned changes" }).click();
    const planned = await page.textContent("#review-verdict");
    const to = planned.match(/move to (\w+)/)[1];
    await page.locator("#review-probable button", { hasText: to }).click();
    await page.keyboard.press("k");
    await page.keyboard.press("Escape");
    const [change, ...others] = changes(await savedPlan(page));
    assert.deepEqual([change.to, others.length], [to, 0]);
    assert.ok("effect" in change, "a decision that is the planned change is the planned line");
    await page.close();
  });

  test("makes the planned changes with Enter, and a held key decides once", async () => {
    const { page } = await open();
    const progress = () => page.textContent("#review-progress");
    const untouched = await savedPlan(page);
    await page.click("#review-open");
    for (const wanted of ["1 of 2", "2 of 2"]) {
      assert.equal(await progress(), wanted);
      const to = (await page.textContent("#review-verdict")).match(/move to (\w+)/)[1];
      assert.equal(await page.evaluate(() => document.activeElement.id), "review-accept");
      assert.equal(await page.textContent("#review-accept"), `Move to ${to} Enter`);
      assert.match(await page.textContent("#review-help"), /^Enter makes the planned change\. K: the label is right\./);
      // After a click on the image nothing has the focus; Enter works all the same.
      if (wanted === "2 of 2") await page.click("#review-picture");
      await page.keyboard.down("Enter");
      if (wanted === "1 of 2") await page.keyboard.down("Enter");
      await page.keyboard.up("Enter");
    }
    assert.match(await page.textContent("#review-done"), /All 2 decided/);
    await page.keyboard.press("Escape");
    assert.equal(readFileSync(await savedPlan(page), "utf8"), readFileSync(untouched, "utf8"));
    assert.match(await page.textContent("#review-state"), /2 to relabel.*Your files are not changed yet: run trueshot repair plan\.jsonl/);
    // Pressing Enter again does not change a decision.
    await page.click("#review-open");
    assert.match(await page.textContent("#review-help"), /^Enter leaves your decision as it is/);
    await page.keyboard.press("Enter");
    assert.equal(await progress(), "2 of 2");
    await page.keyboard.press("Enter");
    assert.match(await page.textContent("#review-done"), /All 2 decided/);
    await page.click("#review-restart");
    assert.equal(await progress(), "1 of 2");
    assert.equal(await page.locator("li.item[data-decided]").count(), 2);
    await page.keyboard.down("k");
    await page.keyboard.down("k");
    await page.keyboard.up("k");
    assert.equal(await progress(), "2 of 2", "every key that decides does so once while it is held");
    await page.close();
  });

  test("decides nothing with Enter if no change is planned", async () => {
    const { page } = await open({}, "unsure.html");
    const count = Number((await page.textContent("[data-show=review]")).match(/\((\d+)\)/)[1]);
    assert.ok(count > 1);
    assert.equal(await page.textContent("#review-open"), `Review ${count} items`);
    await page.click("#review-open");
    assert.equal(await page.evaluate(() => document.activeElement.id), "review-later");
    assert.ok(!(await page.locator("#review-accept").isVisible()));
    assert.match(await page.textContent("#review-help"), /^No change is planned: Enter decides nothing and goes to the next item\./);
    for (let shown = 1; shown <= count; shown++) {
      assert.equal(await page.textContent("#review-progress"), `${shown} of ${count}`);
      await page.keyboard.press("Enter");
    }
    assert.equal(await page.textContent("#review-done"), `0 of ${count} decided.`);
    assert.equal(await page.textContent("#review-restart"), `Review ${count} items`);
    await page.keyboard.press("Escape");
    await page.goto(urlOf("audit.html"));
    const item = page.locator("li.item[data-action=keep]").first();
    await item.focus();
    await page.keyboard.press("Enter");
    assert.match(await page.textContent("#review-help"), /Enter decides nothing and closes the review/);
    await page.keyboard.press("Enter");
    assert.ok(!(await page.locator("#review").isVisible()));
    assert.equal(await page.locator("li.item[data-decided]").count(), 0);
    await page.close();
  });

  test("undoes and redoes decisions, in the dialog and on the page", async () => {
    const { page, progress } = await review();
    await page.keyboard.press("1");
    await page.keyboard.press("q");
    assert.equal(await page.locator("li.item[data-decided]").count(), 2);
    await page.keyboard.press("ArrowLeft");
    assert.equal(await progress(), "2 of 2");
    await page.keyboard.press("ArrowLeft");
    assert.equal(await progress(), "1 of 2");
    assert.equal(await page.locator("li.item[data-decided]").count(), 0);
    await page.keyboard.press("Control+y");
    assert.equal(await page.locator("li.item[data-decided]").count(), 1);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Redo" }).click();
    assert.equal(await page.textContent("#review-state"), "2 decisions.");
    await page.keyboard.press("Control+z");
    await page.keyboard.press("Control+z");
    assert.equal(await page.locator("li.item[data-decided]").count(), 0);
    assert.ok(await page.getByRole("button", { name: "Undo" }).isDisabled());
    await page.close();
  });

  test("survives a reload, and shows what was decided", async () => {
    const { page } = await review();
    await page.keyboard.press("q");
    await page.reload();
    assert.equal(await page.textContent("#review-open"), "Check 1 planned change");
    assert.equal(await page.textContent("li.item[data-decided] .decision"), "Decided: quarantine");
    await page.getByRole("button", { name: "decided (1)" }).click();
    assert.equal(await page.locator("li.item:visible").count(), 1);
    await page.close();
  });

  test("works and warns in a browser that stores nothing, and ignores what is not a decision", async () => {
    const context = await browser.newContext();
    await context.addInitScript(() => { Storage.prototype.setItem = () => { throw new Error("full"); }; Storage.prototype.getItem = () => '{"done":[{"row":99,"to":"x"}],"undone":[]}'; });
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.goto(page_url);
    assert.equal(await page.locator("li.item[data-decided]").count(), 0);
    await page.getByRole("button", { name: "Check 2 planned changes" }).click();
    await page.keyboard.press("q");
    await page.keyboard.press("Escape");
    assert.match(await page.textContent("#review-state"), /does not store decisions: save the plan/);
    assert.equal(changes(await savedPlan(page)).length, 2);
    assert.deepEqual(problems, []);
    await context.close();
  });

  test("opens at an item that is clicked, or entered with the keyboard, and gives the focus back", async () => {
    const { page } = await open();
    const item = page.locator("li.item[data-action=keep]").first();
    await item.locator("img").first().click();
    assert.ok(await page.locator("#review").isVisible());
    assert.equal(await page.textContent("#review-progress"), "");
    await page.keyboard.press("Escape");
    const suspect = page.locator("li.item.relabel").last();
    await suspect.focus();
    await page.keyboard.press("Enter");
    assert.match(await page.textContent("#review-progress"), /of 2/);
    await page.keyboard.press("Escape");
    assert.ok(await suspect.evaluate((one) => one === document.activeElement));
    await page.close();
  });

  test("closes the list of classes first and finds classes by a part of their name", async () => {
    const { page } = await review();
    await page.keyboard.press("m");
    assert.equal(await page.locator("#review-choices button").count(), 3);
    await page.keyboard.type("ing");
    assert.deepEqual(await page.locator("#review-choices button").allTextContents(), ["rings Enter"]);
    await page.keyboard.type("x");
    assert.match(await page.textContent("#review-choices"), /No class/);
    await page.keyboard.press("Enter");
    assert.equal(await page.textContent("#review-progress"), "1 of 2");
    await page.keyboard.press("Escape");
    assert.ok(await page.locator("#review").isVisible());
    assert.ok(!(await page.locator("#review-classes").isVisible()));
    await page.close();
  });
});

for (const [name, options] of Object.entries({
  light: {}, dark: { colorScheme: "dark" }, "on a phone": { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true },
})) {
  test(`axe finds no accessibility problem on the page, in the review and at its end, ${name}`, async () => {
    const { page } = await open(options);
    const check = async (where) => {
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run());
      assert.deepEqual(found.violations.map((one) => `${where}: ${one.id}, ${one.nodes[0].html}`), []);
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= page.viewportSize().width, `${where} is ${width} wide`);
    };
    await check("page");
    await page.locator("#review-open").click();
    await check("review");
    await page.keyboard.press("m");
    await check("classes");
    await page.keyboard.press("Escape");
    await page.keyboard.press("q");
    await page.keyboard.press("ArrowRight");
    await check("end");
    await page.close();
  });
}

test("without its script the page still says everything", async () => {
  const { page } = await open({ javaScriptEnabled: false });
  assert.ok(!(await page.locator("#review-tools").isVisible()));
  assert.equal(await page.locator("li.item:visible").count(), 18);
  assert.ok(!(await page.locator(".filters").isVisible()));
  await page.locator("li.item.relabel").first().hover();
  assert.equal(await page.locator("li.item.relabel").first().locator(".near li:visible").count(), 5);
  await page.close();
});

test("on a telephone nothing hangs over the edge", async () => {
  const { page } = await open({ viewport: { width: 360, height: 740 } });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 360, `the page is ${width} wide`);
  await page.close();
});
