"use strict";
const value = (row, column) => {
  const cell = row.cells[column];
  return cell.classList.contains("n") ? Number(cell.dataset.v ?? cell.textContent) : cell.textContent;
};
const compare = (one, other) => (typeof one === "number" ? one - other : one.localeCompare(other));
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0], column = head.cellIndex;
    const numeric = head.classList.contains("n");
    const down = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
    for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort((one, other) => (down ? compare(other[0], one[0]) : compare(one[0], other[0])));
    body.append(...rows.map(([, row]) => row));
  });
}
const MIN_ROWS = 10;
const text = new WeakMap();
const textOf = (row) => {
  if (!text.has(row)) text.set(row, row.textContent.toLowerCase());
  return text.get(row);
};
for (const box of document.querySelectorAll(".scroll")) {
  const rows = [...box.querySelectorAll("tbody tr")];
  if (rows.length < MIN_ROWS) continue;
  const line = document.createElement("div"), label = document.createElement("label"), input = document.createElement("input"), shown = document.createElement("output");
  line.className = "filter";
  input.type = "search";
  label.append("Filter", input);
  line.append(label, shown);
  box.before(line);
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let found = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => textOf(row).includes(word));
      found += !row.hidden;
    }
    shown.textContent = input.value.trim() ? `${found} of ${rows.length} rows` : `${rows.length} rows`;
  };
  input.addEventListener("input", filter);
  filter();
}
