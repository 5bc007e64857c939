// The theme: the system's preference, until the button changes it. Set in the head, so that the page does not flash.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const KEPT = "continual-petl-theme";
try {
  const kept = localStorage.getItem(KEPT);
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
} catch { /* a page on disk may have no storage */ }
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const keepTheme = (theme) => {
  root.dataset.theme = theme;
  try { localStorage.setItem(KEPT, theme); } catch { /* as above */ }
};
