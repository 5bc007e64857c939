// Draws the figures one after the other, in the colours of the page. A button shows the numbers of a figure as a table.
const figures = new Map(); // place -> figure
let printing = false;
let ready = null;
const loaded = new Promise((resolve) => { ready = resolve; });

const resolved = (name) => {
  const probe = document.getElementById("probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
};

const isNarrow = (place) => !printing && place.clientWidth < 480;
const short = (html) => {
  const text = plain(html);
  return text.length > 12 ? new Option(text.slice(0, 11)).innerHTML + "…" : html;
};

// Returns a figure's layout in the colours of the page and at the width of its place.
const fitted = (place, { data, layout }) => {
  const text = printing ? "#000000" : resolved("text");
  const line = printing ? "#cccccc" : resolved("line");
  const width = printing ? 680 : place.clientWidth;
  const narrow = isNarrow(place);
  const heat = place.dataset.heat === "";
  // With few tasks, plotly would also label fractions of a task.
  const most = Math.max(0, ...data.map((trace) => trace.x?.length ? Number(trace.x.at(-1)) : 0));
  const whole = /tasks learned|by number/.test(layout.xaxis?.title?.text) && most <= (narrow ? 8 : 16) && { dtick: 1 };
  const axis = (own) => ({
    ...own, gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, ...(heat && { showgrid: false, zeroline: false }),
    title: { ...own.title, standoff: 10 }, automargin: true, ...(own.overlaying && { tickmode: "auto" }),
    ...(narrow && own.ticktext && { ticktext: own.ticktext.map(short) }),
  });
  const changed = {
    ...layout, width, autosize: false, dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    showlegend: false, // the page has its own; see `legend`
    font: { ...layout.font, color: text, size: narrow ? 11 : 12 },
    hoverlabel: { ...layout.hoverlabel, bgcolor: resolved("field"), bordercolor: line, font: { color: resolved("text") } },
  };
  for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) changed[key] = axis(layout[key]);
  changed.xaxis = { ...changed.xaxis, ...whole };
  if (narrow) changed.margin = { ...layout.margin, l: 40, r: Math.min(layout.margin?.r ?? 24, 44) };
  return changed;
};

// A heat map shows numbers in its cells if they are legible, and its colour bar above the cells if space is short.
const hasRoom = (place, trace) => {
  const width = (printing ? 680 : place.clientWidth) - (isNarrow(place) ? 130 : 230);
  return width / trace.z[0].length >= (isCounts(trace) ? 24 : 38);
};
const isCounts = (trace) => typeof trace.text?.[0]?.[0] === "number";
const traces = (place, { data }) => data.map((trace) => {
  if (trace.type !== "heatmap") return trace;
  place.dataset.heat = "";
  const above = { orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", thickness: 10, ypad: 6 };
  const bar = isNarrow(place) ? { ...above, title: { ...trace.colorbar?.title, side: "top" } } : { thickness: 18 };
  return { ...trace, texttemplate: hasRoom(place, trace) ? trace.texttemplate : undefined, colorbar: { ...trace.colorbar, ...bar } };
});

const draw = (place, figure) => {
  if (!printing && figure.data.some((trace) => trace.type === "heatmap" && trace.texttemplate && !hasRoom(place, trace))) openNumbers(place);
  return Plotly.react(place, traces(place, figure), fitted(place, figure), { displayModeBar: false, doubleClick: "reset" });
};
const redraw = () => {
  for (const [place, figure] of figures) if (place.isConnected && (place.data || printing)) draw(place, figure);
};

// Numbers that do not fit into the cells of a heat map are listed below it, until the reader closes them.
const openNumbers = (place) => {
  if ("listed" in place.dataset) return;
  place.dataset.listed = "";
  const count = place.closest("figure").querySelector(".count");
  if (count.getAttribute("aria-expanded") === "false") count.click();
};

// The legend is part of the page, so it cannot overlap the figure however many lines it takes. Its buttons hide and show lines.
const SYMBOLS = {
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", square: "M-4-4h8v8h-8z", diamond: "M0-5l5 5l-5 5l-5-5z",
  cross: "M-5-2h3v-3h4v3h3v4h-3v3h-4v-3h-3z", x: "M-5-3l2-2l3 3l3-3l2 2l-3 3l3 3l-2 2l-3-3l-3 3l-2-2l3-3z",
  "triangle-up": "M-5 4h10l-5-8z", "triangle-down": "M-5-4h10l-5 8z", "triangle-left": "M4-5v10l-8-5z",
};
const swatch = (trace) => {
  const colour = trace.line?.color ?? trace.marker?.color;
  const dashes = { dash: "6 3", dot: "2 3" }[trace.line?.dash] ?? "none";
  const symbol = [trace.marker?.symbol ?? 0].flat()[0];
  const shape = SYMBOLS[symbol] ?? Object.values(SYMBOLS)[symbol] ?? SYMBOLS[String(symbol).replace("-open", "")];
  const parts = trace.type === "bar" || trace.stackgroup ? [`<rect x="8" width="12" height="12" fill="${colour}"/>`] : [
    /lines/.test(trace.mode) ? `<path d="M0 6h28" stroke="${colour}" stroke-width="2" stroke-dasharray="${dashes}"/>` : "",
    /markers/.test(trace.mode) ? `<path d="${shape}" transform="translate(14 6)" fill="${colour}"/>` : "",
  ];
  return `<svg viewBox="0 0 28 12" aria-hidden="true">${parts.join("")}</svg>`;
};
const legend = (place, figure) => {
  const { data, layout } = figure;
  const named = data.filter((trace) => trace.name && trace.showlegend !== false);
  if (!(layout.showlegend ?? named.length > 1)) return;
  place.closest("figure").querySelector(".legend").replaceChildren(...named.map((trace) => {
    const button = document.createElement("button");
    button.type = "button";
    button.innerHTML = swatch(trace);
    const name = document.createElement("span");
    write(name, plain(trace.name));
    button.append(name);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      trace.visible = trace.visible === "legendonly" ? true : "legendonly";
      button.setAttribute("aria-pressed", String(trace.visible === true));
      if (place.data) draw(place, figure); // otherwise it is drawn later
    });
    return button;
  }));
};

const digits = (value) => Math.abs(value) < 10000 ? 6 : 15; // a large number may differ from others in its last digits only
const written = (value) => typeof value === "number" ? String(Number(value.toPrecision(digits(value)))) : String(value ?? "");
const plain = (html) => new DOMParser().parseFromString(String(html ?? ""), "text/html").body.textContent;
const ticks = (axis, value, number) => {
  const at = axis?.tickvals?.indexOf(value ?? number) ?? -1;
  return at < 0 ? written(value ?? number + 1) : plain(axis.ticktext?.[at] ?? value);
};

// Returns the headers and rows of a figure's numbers: for a heat map in its layout, otherwise with one column per trace.
const numbers = ({ data, layout }) => {
  const { xaxis, yaxis } = layout;
  const first = data[0];
  if (first?.type === "heatmap") {
    const columns = first.z[0].map((_, number) => ticks(xaxis, first.x?.[number], number));
    const corner = `${plain(yaxis?.title?.text)} \u2193, ${plain(xaxis?.title?.text)} \u2192`;
    const cells = isCounts(first) ? first.text.map((row) => row.map((count) => count || "")) : first.z;
    return [[corner, ...columns], cells.map((row, number) => [ticks(yaxis, first.y?.[number], number), ...row.map(written)])];
  }
  const named = (trace) => plain(trace.name ?? yaxis?.title?.text);
  const points = data.filter((trace) => trace.mode === "markers" && new Set(trace.x).size < trace.x.length)[0];
  const title = plain(xaxis?.title?.text);
  if (points) return [[title, named(points)], points.x.map((x, number) => [written(x), written(points.y[number])])];
  const rows = new Map();
  data.forEach((trace, column) => trace.x.forEach((x, number) => {
    if (!rows.has(x)) rows.set(x, data.map(() => ""));
    rows.get(x)[column] = written(trace.y[number]);
  }));
  const sorted = [...rows].sort(([one], [other]) => one - other);
  return [[title, ...data.map(named)], sorted.map(([x, values]) => [ticks(xaxis, x, 0), ...values])];
};

const numbersTable = (figure, caption) => {
  const [heads, rows] = numbers(figure);
  const wide = document.createElement("div");
  wide.className = "wide";
  wide.setAttribute("role", "group");
  wide.setAttribute("aria-label", caption);
  const table = document.createElement("table");
  table.className = "sortable";
  table.dataset.rows = "50";
  table.createCaption().textContent = caption;
  const head = table.createTHead().insertRow();
  heads.forEach((name, column) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.className = column ? "number" : "";
    cell.setAttribute("aria-sort", "none");
    write(cell, name);
    head.append(cell);
  });
  const body = table.createTBody();
  for (const values of rows) {
    const row = body.insertRow();
    values.forEach((value, column) => {
      const cell = document.createElement(column ? "td" : "th");
      if (column) cell.className = "number"; else cell.scope = "row";
      write(cell, value);
      row.append(cell);
    });
  }
  wide.append(table);
  return wide;
};

// Fills the place of a figure and the elements below it.
const place = (element, figure) => {
  const frame = element.closest("figure");
  const caption = frame.querySelector("figcaption").textContent;
  legend(element, figure);
  const count = frame.querySelector(".count");
  count.addEventListener("click", () => {
    const open = count.getAttribute("aria-expanded") === "false";
    count.setAttribute("aria-expanded", String(open));
    let box = frame.querySelector(".numbers");
    if (!box) {
      box = document.createElement("div");
      box.className = "numbers";
      box.append(numbersTable(figure, `${caption}: numbers`));
      frame.append(box);
      tables(box);
    }
    box.hidden = !open;
    reach();
  });
  frame.querySelector(".save").addEventListener("click", async () => {
    await loaded;
    const name = caption.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");
    // The saved image has plotly's legend, on the right.
    const shown = figure.layout.showlegend ?? figure.data.filter((trace) => trace.name).length > 1;
    const layout = { ...fitted(element, figure), showlegend: shown, legend: { x: 1.12, y: 1 }, width: undefined };
    const size = { width: element.clientWidth + (shown ? 260 : 0), height: element.clientHeight };
    Plotly.downloadImage({ data: traces(element, figure), layout }, { format: "svg", filename: name, ...size });
  });
  figures.set(element, figure);
};
// Draws what has not been drawn, top to bottom; between two figures, the browser may scroll. Figures that were removed from the
// page are released, so that it can stay open for a long time or show a thousand tasks.
let drawing = false;
const drawAll = async () => {
  if (drawing) return;
  drawing = true;
  await loaded;
  try {
    for (const [element, figure] of figures) { // also visits figures that are added meanwhile
      if (!element.isConnected) figures.delete(element);
      else if (!element.data) {
        try { draw(element, figure); } catch (error) { console.error(error); } // the others are drawn all the same
      }
      await new Promise((done) => { setTimeout(done); });
    }
  } finally {
    drawing = false;
  }
};

// For printing, figures get the width of the paper and colours for a white page; those that are not drawn yet are drawn.
const paper = (on) => {
  if (printing === on || !globalThis.Plotly) return;
  printing = on;
  redraw();
};
addEventListener("beforeprint", () => paper(true));
addEventListener("afterprint", () => paper(false));
matchMedia("print").addEventListener("change", (event) => paper(event.matches));
let wide = innerWidth;
let resizing = 0;
addEventListener("resize", () => {
  if (innerWidth === wide || printing) return; // a phone's address bar only changes the height
  wide = innerWidth;
  clearTimeout(resizing);
  resizing = setTimeout(() => { if (globalThis.Plotly) redraw(); reach(); }, 120);
});
