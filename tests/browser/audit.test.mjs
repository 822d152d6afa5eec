// The page of an audit as people see and use it: suspects are framed, filters filter, neighbours come up for the mouse
// and for the keyboard, and nothing comes from outside.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";

const page_url = `file://${process.env.PAGES}/audit.html`;
let browser;

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});
after(() => browser.close());

async function open(options) {
  const page = await browser.newPage({ viewport: { width: 1100, height: 900 }, ...options });
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith("file:") && !request.url().startsWith("data:")) problems.push(`asks for ${request.url()}`);
  });
  await page.goto(page_url);
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

describe("somebody who looks for suspects", () => {
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

  test("sees on every button the number of items that it shows", async () => {
    const { page } = await open();
    for (const button of await page.locator(".filters button").all()) {
      await button.click();
      const count = Number((await button.textContent()).match(/\((\d+)\)/)[1]);
      assert.equal(await page.locator("li.item:visible").count(), count, await button.textContent());
    }
    assert.match(await page.textContent(".lead"), /18 items of 3 classes: 2 to relabel, 16 to keep\.\s*2 labels are suspect/);
    await page.close();
  });

  test("sees neighbours with the mouse and with the keyboard", async () => {
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

  test("gets from the map to the item", async () => {
    const { page } = await open();
    await page.getByRole("button", { name: /to review/ }).click();
    await page.locator(".map a:has(.ring)").first().click();
    const target = await page.evaluate(() => document.activeElement.className);
    assert.match(target, /item relabel/);
    await page.close();
  });
});

test("without its script the page still says everything", async () => {
  const { page } = await open({ javaScriptEnabled: false });
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
