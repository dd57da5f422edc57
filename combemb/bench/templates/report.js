// A click on the head of a column sorts the rows: numbers downwards first, names upwards; rows without a number last.
document.addEventListener("click", (event) => {
  const button = event.target.closest("tr.heads button");
  if (!button) return;
  const head = button.parentElement, column = head.cellIndex, body = head.closest("table").tBodies[0];
  const before = head.getAttribute("aria-sort"), first = column === 0 ? "ascending" : "descending";
  const order = before === first ? (first === "ascending" ? "descending" : "ascending") : first;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1, valueOf = (row) => row.cells[column].dataset.value;
  const compared = (a, b) => {
    const [x, y] = [valueOf(a), valueOf(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    return sign * (column === 0 ? x.localeCompare(y) : Number(x) - Number(y));
  };
  body.append(...[...body.rows].sort(compared));
});
