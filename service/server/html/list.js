"use strict";
// The list of conversations: open, find, rename, export and delete them.

const FIND_FROM = 8; // conversations from which on a box to find them is worth its place

/**
 * Fill the list. `actions` are functions with the id of a conversation: `open`, `rename` with the new title, `save`, `remove`.
 *
 * A title that is being edited is not disturbed.
 */
function renderList(conversations, currentId, actions) {
  const list = at("list");
  if (list.querySelector("form")) return;
  const focused = list.contains(document.activeElement) ? [document.activeElement.closest("li").dataset.id, document.activeElement.dataset.action] : null;
  const wanted = at("find").value.trim().toLowerCase();
  at("find").hidden = conversations.length < FIND_FROM && !wanted;
  const matching = conversations.filter(({ title }) => titleShown(title).toLowerCase().includes(wanted));
  list.replaceChildren(...matching.map((conversation) => listItem(conversation, conversation.id === currentId, actions)));
  at("list-empty").hidden = matching.length > 0;
  at("list-empty").textContent = wanted ? "No title has that." : "What you ask is kept here, in this browser alone.";
  at("export-all").hidden = conversations.length === 0;
  if (focused) list.querySelector(`li[data-id="${CSS.escape(focused[0])}"] [data-action="${focused[1]}"]`)?.focus();
}

const titleShown = (title) => String(title ?? "").trim() || "Untitled";

function listItem(conversation, isCurrent, actions) {
  const { id, title, updated } = conversation;
  const action = (name, label, onclick) => {
    const element = button(label, onclick, { ariaLabel: `${label} “${titleShown(title)}”` });
    element.dataset.action = name;
    return element;
  };
  const open = button(titleShown(title), () => actions.open(id), { className: "plain title", title: new Date(updated).toLocaleString() });
  open.dataset.action = "open";
  const item = make("li", {}, open);
  item.dataset.id = id;
  if (isCurrent) {
    open.setAttribute("aria-current", "true");
    item.append(make("span", { className: "row" },
      action("rename", "Rename", () => renameIn(item, open, conversation, actions)),
      action("save", "Export", () => actions.save(id)),
      action("remove", "Delete", () => actions.remove(id, titleShown(title)))));
  }
  return item;
}

function renameIn(item, open, { id, title }, { rename, render }) {
  const input = make("input", { value: titleShown(title), maxLength: TITLE_MAX_CHARACTERS, ariaLabel: "Title of the conversation" });
  const form = make("form", {}, input);
  let isOver = false;
  const end = (isKept) => {
    if (isOver) return;
    isOver = true;
    form.replaceWith(open);
    open.focus();
    if (isKept && input.value.trim()) rename(id, titleOf(input.value)); else render();
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); end(true); });
  form.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); end(false); } });
  input.addEventListener("blur", () => end(true));
  open.replaceWith(form);
  input.select();
}

/** Ask before something is deleted; resolves with whether it is. */
function confirmed(title) {
  const dialog = at("confirm");
  at("confirm-text").textContent = `“${title}” is deleted from this browser, and cannot be brought back.`;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => { dialog.addEventListener("close", () => resolve(dialog.returnValue === "delete"), { once: true }); });
}

/** Offer a text as a file. */
function offer(text, name) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
