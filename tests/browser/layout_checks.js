const MIN_LETTERS = 11, TOLERANCE = 2;
const style = (element) => window.getComputedStyle(element);
const describe = (element, text = element.textContent) =>
  `<${element.tagName.toLowerCase()}${element.id ? ` id=${element.id}` : ""}${element.getAttribute("class") ? ` class="${element.getAttribute("class")}"` : ""}> ${JSON.stringify(text.trim().slice(0, 60))}`;
const seen = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });

// The part of a box that the scroll containers and clips around an element leave of it; none for a link that is moved
// off the page until it has the focus.
const shown = (element, { left, top, right, bottom }) => {
  const box = { left, top, right, bottom };
  for (let outer = element; outer && outer !== document.documentElement; outer = outer.parentElement) {
    if (style(outer).overflow === "visible") continue;
    const frame = outer.getBoundingClientRect();
    box.left = Math.max(box.left, frame.left); box.right = Math.min(box.right, frame.right);
    box.top = Math.max(box.top, frame.top); box.bottom = Math.min(box.bottom, frame.bottom);
  }
  const isShown = box.right > 0 && box.right - box.left > TOLERANCE && box.bottom - box.top > TOLERANCE;
  return isShown ? box : null;
};

// One item for each line of each text: the line of letters, which is lower than the box of the font.
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, element = node.parentElement;
  if (!node.data.trim() || !seen(element)) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const each of range.getClientRects()) {
    const fifth = each.height / 5;
    const letters = { left: each.left, right: each.right, top: each.top + fifth, bottom: each.bottom - fifth };
    texts.push({ element, letters, box: shown(element, letters), text: node.data });
  }
}
const controls = [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
  .filter(seen)
  .flatMap((element) => [...element.getClientRects()].map((line) => // a link can take several lines
    ({ element, box: shown(element, line), text: element.value || element.textContent })));

const errors = [];
const pageWidth = document.documentElement.scrollWidth;
if (pageWidth > window.innerWidth) errors.push(`the page is ${pageWidth} px wide in a window of ${window.innerWidth} px`);
const sizeOf = (element) => {
  const scale = element.ownerSVGElement ? element.getScreenCTM().a : 1;
  return Math.round(parseFloat(style(element).fontSize) * scale * 10) / 10;
};
for (const { element, letters, box, text } of texts) {
  if (sizeOf(element) < MIN_LETTERS) errors.push(`letters of ${sizeOf(element)} px: ${describe(element, text)}`);
  if (box && box.left < -TOLERANCE) errors.push(`left of the page: ${describe(element, text)}`);
  const clipped = element.closest("*") && [element, element.parentElement].find((each) => each && /hidden|clip/.test(style(each).overflowX));
  if (clipped && clipped.clientWidth > TOLERANCE && letters.right > clipped.getBoundingClientRect().right + TOLERANCE)
    errors.push(`cut off: ${describe(element, text)}`);
}
const items = [...texts, ...controls].filter((item) => item.box).sort((one, other) => one.box.top - other.box.top);
const over = (one, other) =>
  Math.min(one.right, other.right) - Math.max(one.left, other.left) > TOLERANCE &&
  Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > TOLERANCE;
items.forEach((item, i) => {
  for (const other of items.slice(i + 1)) {
    if (other.box.top > item.box.bottom) break;
    if (item.element.contains(other.element) || other.element.contains(item.element)) continue;
    if (over(item.box, other.box)) errors.push(`${describe(item.element, item.text)} overlaps ${describe(other.element, other.text)}`);
  }
});
return [...new Set(errors)];
