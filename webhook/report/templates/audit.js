"use strict";
const value = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
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
