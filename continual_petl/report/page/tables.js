// Tables are sorted by clicking their headers, and shown page by page. The rows of a long table are stored as data next to it,
// and only those of the visible page are created. A cell in the data is its text, or a list: text, sort key, kind, the task
// that it opens.
const long = new WeakMap();
// Appends a text that can break after its underscores and slashes.
const write = (element, text) => {
  String(text).split(/(?<=[_/])/).forEach((part, number) => element.append(...(number ? [document.createElement("wbr"), part] : [part])));
};
const rowsOf = (table) => long.get(table)?.rows ?? [...table.tBodies[0].rows];
const made = (cells, kinds) => {
  const row = document.createElement("tr");
  cells.forEach((cell, column) => {
    const [text, , kind, task] = [cell].flat();
    const element = document.createElement(column ? "td" : "th");
    if (!column) element.scope = "row";
    if (kind ?? kinds[column]) element.className = kind ?? kinds[column];
    if (task === undefined) {
      write(element, text);
    } else {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "opens" });
      write(button, text);
      button.dataset.task = task;
      element.append(button);
    }
    row.append(element);
  });
  return row;
};
const sortedBy = (row, column) => {
  if (!row.cells) return [row[column]].flat()[1] ?? [row[column]].flat()[0];
  return row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
};
const key = (row, column) => {
  const value = sortedBy(row, column);
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
  const keyed = rowsOf(table).map((row) => [key(row, column), row]);
  keyed.sort(([one], [other]) => compare(one, other) * (down ? -1 : 1));
  const rows = keyed.map(([, row]) => row);
  if (long.has(table)) long.get(table).rows = rows; else table.tBodies[0].append(...rows);
};

const turn = (table, asked) => {
  const rows = rowsOf(table);
  const size = Number(table.dataset.rows);
  const last = Math.max(0, Math.ceil(rows.length / size) - 1);
  const page = Math.min(Math.max(asked, 0), last);
  table.dataset.page = page;
  if (long.has(table)) {
    const { kinds } = long.get(table);
    table.tBodies[0].replaceChildren(...rows.slice(page * size, (page + 1) * size).map((cells) => made(cells, kinds)));
  } else {
    rows.forEach((row, number) => { row.hidden = Math.floor(number / size) !== page; });
  }
  fit(table);
  const pager = table.parentElement.nextElementSibling;
  if (!pager?.classList.contains("pager")) return;
  pager.querySelector("span").textContent = `rows ${page * size + 1} to ${Math.min(rows.length, (page + 1) * size)} of ${rows.length}`;
  pager.querySelectorAll("button").forEach((one) => { one.disabled = one.value === "first" || one.value === "-1" ? page === 0 : page === last; });
};

// A table that is wider than its place is shown as a list, so that no column is hidden and no word is broken.
const fit = (table) => {
  const box = table.parentElement;
  table.classList.remove("listed");
  if (box.scrollWidth <= box.clientWidth) return;
  table.classList.add("listed");
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.head = heads[column]; });
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
    const data = table.nextElementSibling;
    if (data?.matches("script.rows")) long.set(table, JSON.parse(data.textContent));
    if (rowsOf(table).length > Number(table.dataset.rows)) table.parentElement.after(pagerOf(table));
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.append(...head.childNodes);
      head.append(sorter);
      sorter.addEventListener("click", () => {
        sort(table, column, head.getAttribute("aria-sort") === "ascending");
        turn(table, 0);
      });
    });
    turn(table, 0);
  }
  reach();
};

// Fits all tables, and makes those that scroll focusable, so that the keyboard can scroll them.
const reach = () => {
  document.querySelectorAll("table.sortable").forEach(fit);
  for (const box of document.querySelectorAll(".wide")) {
    if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0; else box.removeAttribute("tabindex");
  }
};
