// The details of a task are in a separate script file: a page on disk cannot load anything else.
globalThis.continualPetlTask = (number, html, figures) => {
  const select = document.getElementById("task");
  if (!select || Number(select.value) !== number) return;
  const details = document.getElementById("details");
  details.innerHTML = html;
  details.querySelectorAll(".plot").forEach((element, at) => place(element, figures[at]));
  tables(details);
  drawAll();
};
// In a long run many tasks share a compressed file; the requested one is shown.
globalThis.continualPetlTasks = async (packed) => {
  try {
    const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const number = Number(document.getElementById("task")?.value);
    const found = (await new Response(unpacked).json()).find(([place]) => place === number);
    if (found) continualPetlTask(...found);
  } catch (error) {
    document.getElementById("details").textContent = `This browser cannot unpack the details (${error.message}); a newer one can.`;
  }
};
const open = (number, jump) => {
  const select = document.getElementById("task");
  select.value = String(number);
  for (const button of document.querySelectorAll(".chooser button")) {
    button.disabled = number + Number(button.value) < 0 || number + Number(button.value) >= select.options.length;
  }
  const script = document.createElement("script");
  const first = number - number % Number(document.getElementById("details").dataset.together ?? 1);
  script.src = `tasks/${String(first).padStart(6, "0")}.js?${document.body.dataset.stamp}`;
  script.onload = () => {
    script.remove();
    if (jump !== null) say(`Details of task ${select.selectedOptions[0].textContent} are shown.`);
  };
  script.onerror = () => { document.getElementById("details").textContent = "The file of this task is missing next to the page."; };
  document.head.append(script);
  if (jump) { document.getElementById("tasks").scrollIntoView(); select.focus({ preventScroll: true }); }
};
document.addEventListener("change", ({ target }) => { if (target.id === "task") open(Number(target.value), false); });
document.addEventListener("click", ({ target }) => {
  const asked = target.closest?.(".opens");
  if (asked) open(Number(asked.dataset.task), true);
  const step = target.closest?.(".chooser button");
  if (step) open(Number(document.getElementById("task").value) + Number(step.value), false);
});
