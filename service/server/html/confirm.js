"use strict";
// The dialog that asks before something is deleted.

/**
 * Ask before a conversation is deleted; resolves with whether it is.
 *
 * The focus stays in the dialog, and goes back to where it was if nothing is deleted: `refocus()` finds that again
 * where the list was rendered anew meanwhile.
 */
function confirmed(title, refocus) {
  const dialog = at("confirm"), before = document.activeElement;
  at("confirm-text").replaceChildren("“", make("bdi", { textContent: title }), "” is deleted from this browser, and cannot be brought back.");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const isDeleted = dialog.returnValue === "delete";
      if (!isDeleted) (before?.isConnected ? before : refocus())?.focus();
      resolve(isDeleted);
    }, { once: true });
  });
}

// A modal dialog lets Tab go on to the browser's own buttons; here it goes around.
at("confirm").addEventListener("keydown", (event) => {
  if (event.key !== "Tab") return;
  const buttons = [...at("confirm").querySelectorAll("button")];
  const end = event.shiftKey ? buttons.at(0) : buttons.at(-1);
  if (document.activeElement !== end) return;
  event.preventDefault();
  (event.shiftKey ? buttons.at(-1) : buttons.at(0)).focus();
});
