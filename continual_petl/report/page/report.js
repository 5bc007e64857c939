// Connects the parts of the page. Nothing is fetched, so it works from disk.
const say = (words) => { document.getElementById("news").textContent = words; };

// Initialises the content of the document; called again when a newer page replaces it.
const fill = () => {
  for (const element of document.querySelectorAll("script.data")) {
    const target = document.querySelector(`.plot[data-figure="${CSS.escape(element.dataset.name)}"]`);
    place(target, JSON.parse(element.textContent));
  }
  tables(document);
  drawAll();
};

const button = document.getElementById("theme");
const paint = () => {
  button.setAttribute("aria-pressed", String(isDark()));
  if (globalThis.Plotly) redraw();
};
button.addEventListener("click", () => { keepTheme(isDark() ? "light" : "dark"); paint(); });
system.addEventListener("change", paint);

document.addEventListener("click", async ({ target }) => {
  const copied = target.dataset?.copy && document.getElementById(target.dataset.copy);
  if (!copied) return;
  let done = true;
  try {
    await navigator.clipboard.writeText(copied.textContent);
  } catch { // a page on disk, or permission denied: use the older API
    getSelection().selectAllChildren(copied);
    done = document.execCommand("copy");
  }
  say(done ? "The command was copied." : "The command is selected; copy it with Ctrl-C.");
  target.textContent = done ? "Copied" : "Selected";
  setTimeout(() => { target.textContent = "Copy"; }, 3000);
});

const plotly = document.getElementById("plotly");
plotly.addEventListener("load", () => ready());
plotly.addEventListener("error", () => {
  for (const element of document.querySelectorAll(".plot")) {
    element.textContent = "plotly.min.js is missing next to the page: copy the whole folder, not just this file.";
  }
});
if (globalThis.Plotly) ready();
button.setAttribute("aria-pressed", String(isDark()));
fill();
if (document.getElementById("task")?.options.length) open(0, null);
