// The theme: what the system prefers, until the button says otherwise. This stands in the head, so that no page flashes.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const KEPT = "continual-petl-theme";
try {
  const kept = localStorage.getItem(KEPT);
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
} catch { /* a page from a disk may not be allowed to remember */ }
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const keepTheme = (theme) => {
  root.dataset.theme = theme;
  try { localStorage.setItem(KEPT, theme); } catch { /* as above */ }
};
