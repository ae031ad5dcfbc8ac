// Set the theme before the first paint: the stored one, else the system's.
"use strict";
{
  let selected = null;
  try { selected = localStorage.getItem("hopsml-theme"); } catch { /* storage is disabled */ }
  const dark = selected ? selected === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
