// While a report is served: when the server has a newer page, its content replaces the old one, and the reader keeps the
// scroll position, theme, task and table order.
// A section and a figure in it may have the same name.
const keyOf = (element) => `${element.localName} ${element.dataset.figure ?? element.caption?.textContent ?? element.id}`;
const anchors = () => [...document.querySelectorAll("main > section, main > section .plot[data-figure], main > section > .wide > table")];

const topOf = (element) => element.getBoundingClientRect().top;
const named = (name) => anchors().find((element) => keyOf(element) === name);

let kept = null; // where the last refresh meant the page to be: browsers round to whole pixels, which would add up

// What starts nearest to the top of the window stays there: what is above it on the page may become longer or shorter.
const remember = () => {
  const far = (element) => Math.abs(topOf(element) - 60);
  const seen = anchors().filter((element) => topOf(element) > -400 && topOf(element) < innerHeight);
  const top = seen.sort((one, other) => far(one) - far(other))[0] ?? anchors().findLast((element) => topOf(element) <= 60);
  const before = kept && named(kept.key);
  const still = before && Math.abs(topOf(before) - kept.at) < 1;
  const focus = document.activeElement;
  return {
    top: still ? kept : top && { key: keyOf(top), at: topOf(top) },
    focus: focus?.closest("main") && { section: focus.closest("section").id, tag: focus.tagName, id: focus.id, words: focus.textContent },
    task: document.getElementById("task")?.selectedOptions[0]?.textContent,
    details: document.getElementById("details"),
    sorted: [...document.querySelectorAll("main > section > .wide > table")].map((table) => ({
      key: keyOf(table), page: Number(table.dataset.page),
      column: [...table.tHead.rows[0].cells].findIndex((head) => head.getAttribute("aria-sort") !== "none"),
      down: table.querySelector('[aria-sort="descending"]') !== null,
    })),
    open: [...document.querySelectorAll("main > section .count[aria-expanded='true']")].filter((one) => !one.closest("#details")).map((one) => one.closest("figure").querySelector(".plot").dataset.figure),
  };
};

const restore = (was) => {
  const figureOf = (name) => document.querySelector(`.plot[data-figure="${CSS.escape(name ?? "")}"]`)?.closest("figure");
  for (const { key: name, page, column, down } of was.sorted) {
    const table = anchors().find((element) => element.tBodies && keyOf(element) === name);
    if (!table) continue;
    if (column >= 0) sort(table, column, down);
    turn(table, page);
  }
  for (const name of was.open) figureOf(name)?.querySelector(".count").click();
  const select = document.getElementById("task");
  const place = select ? [...select.options].findIndex((option) => option.textContent === was.task) : -1;
  if (place >= 0) {
    document.getElementById("details").replaceWith(was.details); // keep the old content until the new file is loaded
    open(place, null);
  } else if (select) {
    open(0, null);
  }
  if (was.focus) {
    const { section, tag, id, words } = was.focus;
    const inside = [...document.getElementById(section)?.querySelectorAll(tag) ?? []];
    (document.getElementById(id) ?? inside.find((one) => one.textContent === words))?.focus({ preventScroll: true });
  }
  const top = was.top && named(was.top.key);
  if (top) scrollBy({ top: topOf(top) - was.top.at, behavior: "instant" });
  kept = top ? was.top : null;
};

const refresh = async () => {
  const answer = await fetch("./", { cache: "no-store" });
  if (!answer.ok) return;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const was = remember();
  for (const part of ["header h1", "nav", "main", "footer", "#data"]) {
    document.querySelector(part).replaceWith(document.adoptNode(next.querySelector(part)));
  }
  document.title = next.title;
  document.body.dataset.stamp = next.body.dataset.stamp;
  fill();
  restore(was);
  say(document.querySelector(".verdict")?.textContent.trim() ?? "The page was redrawn.");
};

if ("live" in document.body.dataset) {
  const connected = document.getElementById("connected");
  let busy = false;
  const look = async () => {
    if (busy || printing || document.hidden) return;
    busy = true;
    try {
      const stamp = await (await fetch("stamp", { cache: "no-store" })).text();
      if (stamp.trim() !== document.body.dataset.stamp) await refresh();
      connected.textContent = "live";
    } catch {
      connected.textContent = "server stopped";
    } finally {
      busy = false;
    }
  };
  connected.hidden = false;
  setInterval(look, 2000);
  document.addEventListener("visibilitychange", look);
}
