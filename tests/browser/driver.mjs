// node driver.mjs MODULES PROGRAM: drive one browser. Each line of the input is a command, each line of the output the
// answer to it. The browser ends with the input.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, program] = process.argv.slice(2);
const { default: puppeteer } = createRequire(`${modules}/`)("puppeteer-core");
const axe = readFileSync(`${modules}/axe-core/axe.min.js`, "utf8");
const MINUTES = 60_000; // of a busy machine; only a real failure takes them

const browser = await puppeteer.launch({
  executablePath: program,
  headless: "shell",
  pipe: true,
  acceptInsecureCerts: true, // servers of tests have certificates of their own
  protocolTimeout: 3 * MINUTES,
  timeout: 3 * MINUTES,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"],
});
const pages = new Map();

// One call, as each resets what it omits.
const show = async ({ page, session }, { width, height, dark, printed }) => {
  await page.setViewport({ width, height });
  const features = [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }];
  await session.send("Emulation.setEmulatedMedia", { media: printed ? "print" : "screen", features });
};

const record = (page, session) => {
  const errors = [], requests = [];
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push(`${request.method()} ${request.url()}`));
  page.on("requestfailed", (request) => errors.push(`${request.url()}: ${request.failure()?.errorText}`));
  page.on("response", (response) => response.status() >= 400 && errors.push(`${response.url()}: ${response.status()}`));
  return { page, session, errors, requests };
};

const commands = {
  async open({ id, view, headers }) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    page.setDefaultTimeout(2 * MINUTES);
    await page.setExtraHTTPHeaders(headers);
    pages.set(id, record(page, await page.createCDPSession()));
    await show(pages.get(id), view);
  },
  async close({ id }) {
    await pages.get(id).page.browserContext().close();
    pages.delete(id);
  },
  show: ({ id, view }) => show(pages.get(id), view),
  fill: ({ id, html }) => pages.get(id).page.setContent(html),
  go: async ({ id, url }) => (await pages.get(id).page.goto(url, { waitUntil: "load" }))?.status() ?? null,
  evaluate: ({ id, script }) => pages.get(id).page.evaluate(`(async () => {${script}\n})()`),
  wait: async ({ id, script }) => void (await pages.get(id).page.waitForFunction(`(() => {${script}\n})()`)),
  async follow({ id, selector }) {
    const { page } = pages.get(id);
    await Promise.all([page.waitForNavigation(), page.click(selector)]);
  },
  async press({ id, keys }) {
    for (const key of keys) await pages.get(id).page.keyboard.press(key);
  },
  type: ({ id, text }) => pages.get(id).page.keyboard.type(text),
  screenshot: ({ id, path, full }) => pages.get(id).page.screenshot({ path, fullPage: full }).then(() => null),
  async axe({ id }) {
    const { page } = pages.get(id);
    await page.evaluate(axe);
    const { violations } = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })");
    return violations.map(({ id, impact, help, nodes }) => ({
      id, impact, help, elements: nodes.map((node) => node.html),
    }));
  },
  recorded: ({ id }) => ({ errors: pages.get(id).errors, requests: pages.get(id).requests }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await commands[command](options)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
