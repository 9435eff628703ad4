// Before the page is drawn: the theme that the reader chose last, if the browser remembers it.
(() => {
  "use strict";
  let chosen = null;
  try { chosen = localStorage.getItem("poet-theme"); } catch { /* a file without storage follows the system */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
