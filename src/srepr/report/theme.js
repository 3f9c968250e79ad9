/* Colours: as the system has them until the button is pressed. Pages opened from a disk may have no storage. */

function openTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement, button = find("#theme");
  const stored = (work) => {
    try { return work(sessionStorage); } catch { return null; }
  };
  const other = () => ((root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark");
  const label = () => (button.querySelector("span").textContent = other() === "dark" ? "Dark" : "Light");
  const kept = stored((storage) => storage.getItem("theme"));
  if (kept) root.dataset.theme = kept;
  button.addEventListener("click", () => {
    root.dataset.theme = other();
    stored((storage) => storage.setItem("theme", root.dataset.theme));
    label();
  });
  system.addEventListener("change", label);
  label();
}
