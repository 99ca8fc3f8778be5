// Light, dark, or as the system says; remembered where the browser lets a page remember.
(function () {
  "use strict";
  const ORDER = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("specbench-theme") || "auto";
  } catch (error) {
    theme = "auto"; // pages from a disk may be refused a memory
  }
  function apply() {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }
  if (!ORDER.includes(theme)) theme = "auto";
  apply();
  document.addEventListener("DOMContentLoaded", function () {
    const button = document.getElementById("theme");
    const label = () => (button.textContent = "Theme: " + theme);
    button.hidden = false;
    label();
    button.addEventListener("click", function () {
      theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
      try {
        localStorage.setItem("specbench-theme", theme);
      } catch (error) {
        // it holds for this page
      }
      apply();
      label();
      document.dispatchEvent(new CustomEvent("themechange"));
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    document.dispatchEvent(new CustomEvent("themechange"));
  });
})();
