// Tables are sorted by their heads, and shown page by page.
const key = (row, column) => {
  const cell = row.cells[column];
  const value = cell.dataset.sort ?? cell.textContent.trim();
  const number = Number(value);
  return value !== "" && Number.isFinite(number) ? number : value;
};
const compare = (one, other) => {
  if (typeof one === "number" && typeof other === "number") return one - other;
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return one.localeCompare(other, undefined, { numeric: true });
};

const sort = (table, column, down) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, number) => head.setAttribute("aria-sort", number === column ? (down ? "descending" : "ascending") : "none"));
  const keyed = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
  keyed.sort(([one], [other]) => compare(one, other) * (down ? -1 : 1));
  table.tBodies[0].append(...keyed.map(([, row]) => row));
};

const turn = (table, asked) => {
  const rows = [...table.tBodies[0].rows];
  const size = Number(table.dataset.rows);
  const last = Math.max(0, Math.ceil(rows.length / size) - 1);
  const page = Math.min(Math.max(asked, 0), last);
  table.dataset.page = page;
  rows.forEach((row, number) => { row.hidden = Math.floor(number / size) !== page; });
  const pager = table.parentElement.nextElementSibling;
  if (!pager?.classList.contains("pager")) return;
  pager.querySelector("span").textContent = `rows ${page * size + 1} to ${Math.min(rows.length, (page + 1) * size)} of ${rows.length}`;
  pager.querySelectorAll("button").forEach((one) => { one.disabled = one.value === "first" || one.value === "-1" ? page === 0 : page === last; });
};

const pagerOf = (table) => {
  const pager = document.createElement("div");
  const name = table.caption.textContent;
  pager.className = "pager";
  for (const [value, words] of [["first", "First"], ["-1", "Previous"], ["", ""], ["1", "Next"], ["last", "Last"]]) {
    const part = document.createElement(value ? "button" : "span");
    if (value) {
      Object.assign(part, { type: "button", value, textContent: words });
      part.setAttribute("aria-label", `${words} page of ${name}`);
    } else {
      part.setAttribute("role", "status");
    }
    pager.append(part);
  }
  pager.addEventListener("click", ({ target }) => {
    if (!target.value) return;
    const steps = { first: -Infinity, last: Infinity };
    turn(table, Number(table.dataset.page) + (steps[target.value] ?? Number(target.value)));
    if (target.disabled) pager.querySelector("button:not(:disabled)").focus();
  });
  return pager;
};

const tables = (inside) => {
  for (const table of inside.querySelectorAll("table.sortable:not([data-page])")) {
    if (table.tBodies[0].rows.length > Number(table.dataset.rows)) table.parentElement.after(pagerOf(table));
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.textContent = head.textContent;
      head.replaceChildren(sorter);
      sorter.addEventListener("click", () => {
        sort(table, column, head.getAttribute("aria-sort") === "ascending");
        turn(table, 0);
      });
    });
    turn(table, 0);
  }
  reach();
};

// A table that is wider than the page is a stop for the keyboard, which scrolls it; any other one is none.
const reach = () => {
  for (const box of document.querySelectorAll(".wide")) {
    if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0; else box.removeAttribute("tabindex");
  }
};
