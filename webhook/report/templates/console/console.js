"use strict";
const PERIOD_MS = 5000;
const FOCUSABLE = "a, button, input, select, textarea, summary, [tabindex]";
const main = document.querySelector("main");
let tag = "", shown = main.innerHTML;

// What is being written must not be disturbed: the form stays, and what is around it is replaced.
const replace = (content) => {
  const form = main.querySelector(":scope > form"), other = content.querySelector(":scope > form");
  if (!form) return main.replaceChildren(...content.childNodes);
  for (const each of [...main.childNodes]) if (each !== form) each.remove();
  const nodes = [...content.childNodes], at = other ? nodes.indexOf(other) : nodes.length;
  form.before(...nodes.slice(0, at));
  form.after(...nodes.slice(at + 1));
};

// Rows come, go and move: a control is the same one if its row and what it leads to are.
const keyOf = (control) => {
  const row = control.closest("tr")?.querySelector("th")?.textContent ?? "";
  return [row, control.id, control.getAttribute("href") ?? control.getAttribute("aria-label") ?? control.textContent].join("\n");
};

const show = (content) => {
  const focused = document.activeElement, key = main.contains(focused) ? keyOf(focused) : "";
  const opened = new Set([...main.querySelectorAll("details[open] > summary")].map(keyOf));
  const scrolled = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  shown = content.innerHTML;
  replace(content);
  main.querySelectorAll(".scroll").forEach((each, i) => { each.scrollLeft = scrolled[i] ?? 0; });
  main.querySelectorAll("summary").forEach((each) => { each.parentElement.open = opened.has(keyOf(each)); });
  if (!key || main.contains(focused)) return;
  const control = [...main.querySelectorAll(FOCUSABLE)].find((each) => keyOf(each) === key);
  (control ?? main).focus({ preventScroll: true });
};

const problemOf = (page) => page.querySelector("#reading strong")?.textContent ?? "";
const statusOf = (page) => page.querySelector("[data-status]")?.dataset.status ?? "";
const announce = () => {
  document.querySelector("#announcement").textContent = statusOf(document) || document.querySelector("#reading").textContent;
};

const update = async () => {
  if (document.hidden) return;
  const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
  if (answer.status === 304) return;
  const text = await answer.text();
  const page = new DOMParser().parseFromString(text, "text/html");
  const content = page.querySelector("main"), isNew = content.innerHTML !== shown;
  const status = statusOf(page), isStatus = status ? status !== statusOf(document) : isNew;
  const isNews = isStatus || problemOf(page) !== problemOf(document);
  document.querySelector("#reading").replaceChildren(...page.querySelector("#reading").childNodes);
  document.title = page.title;
  tag = answer.headers.get("ETag") ?? "";
  if (isNew) show(content);
  if (isNews) announce();
};

// The page stays as it is. Without a tag, the next answer is a whole page, which removes the warning.
const showUnreachable = () => {
  tag = "";
  const reading = document.querySelector("#reading");
  if (reading.querySelector(".unreachable")) return;
  const warning = document.createElement("strong");
  warning.className = "bad unreachable";
  warning.textContent = " Not current: the console does not send this page. It may have ended.";
  reading.append(warning);
  announce();
};

if (main.hasAttribute("data-live")) {
  setInterval(() => { update().catch(showUnreachable); }, PERIOD_MS);
}
