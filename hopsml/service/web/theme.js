// Before anything is drawn: the theme that was chosen here, else the system's.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("hopsml-theme"); } catch { /* a browser that keeps nothing */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
