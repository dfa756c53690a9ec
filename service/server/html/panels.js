"use strict";
// The panels at the sides, which on a narrow screen cover the chat.

const isWide = matchMedia("(min-width: 60.0625rem)");
function showPanel(name, isShown) {
  at(name).hidden = !isShown;
  at(`${name}-toggle`).setAttribute("aria-expanded", String(isShown));
  if (!isWide.matches && isShown) showPanel(name === "chats" ? "options" : "chats", false);
  const isCovered = !isWide.matches && !(at("chats").hidden && at("options").hidden);
  document.querySelector("main").inert = document.querySelector("header").inert = isCovered;
  if (isWide.matches) kept("localStorage", `levserve.${name}`, isShown ? "open" : "closed");
  renderCode();
}
function closePanel(name) { showPanel(name, false); at(`${name}-toggle`).focus(); }
function arrangePanels() {
  showPanel("chats", isWide.matches && kept("localStorage", "levserve.chats") !== "closed");
  showPanel("options", isWide.matches && kept("localStorage", "levserve.options") === "open");
}
for (const name of ["chats", "options"]) {
  at(`${name}-toggle`).addEventListener("click", () => {
    if (!at(name).hidden) closePanel(name);
    else {
      showPanel(name, true);
      if (!isWide.matches) at(`${name}-close`).focus();
    }
  });
  at(`${name}-close`).addEventListener("click", () => closePanel(name));
}
isWide.addEventListener("change", arrangePanels);
