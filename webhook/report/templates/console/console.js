"use strict";
const PERIOD_MS = 5000;
const FOCUSABLE = "a, button, input, select, textarea, [tabindex]";
const main = document.querySelector("main");
let tag = "", shown = main.innerHTML;

// Typing and opened lists must not be disturbed: the page is then replaced after the next period.
const isBusy = () => document.hidden || Boolean(main.querySelector("input:focus, select:focus, textarea:focus"));

const positionOfFocus = () => [...main.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);

const show = (content) => {
  const focus = positionOfFocus();
  const scrolled = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  shown = content.innerHTML;
  main.replaceChildren(...content.childNodes);
  main.querySelectorAll(".scroll").forEach((each, i) => { each.scrollLeft = scrolled[i] ?? 0; });
  if (focus >= 0) main.querySelectorAll(FOCUSABLE)[focus]?.focus({ preventScroll: true });
};

const update = async () => {
  if (isBusy()) return;
  const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
  if (answer.status === 304) return;
  const text = await answer.text();
  const page = new DOMParser().parseFromString(text, "text/html");
  document.querySelector("#reading").replaceChildren(...page.querySelector("#reading").childNodes);
  const content = page.querySelector("main"), isNew = content.innerHTML !== shown;
  if (isNew && isBusy()) return;
  tag = answer.headers.get("ETag") ?? "";
  if (!isNew) return;
  show(content);
  document.querySelector("#announcement").textContent = document.querySelector("#reading").textContent;
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
};

if (main.hasAttribute("data-live")) {
  setInterval(() => { update().catch(showUnreachable); }, PERIOD_MS);
}
