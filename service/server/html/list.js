"use strict";
// The list of conversations: open, search, rename, export and delete them.

/**
 * Fill the list. `actions` are functions with the id of a conversation: `open`, `rename` with the new title, `save`, `remove`.
 *
 * With a search, those that match it alone, with what was found; `isComplete`: all messages were searched. A title that is being edited is not disturbed.
 */
function renderList(conversations, currentId, actions, search = null, isComplete = true) {
  const list = at("list");
  if (list.querySelector("form")) return;
  const focused = list.contains(document.activeElement) ? [document.activeElement.closest("li").dataset.id, document.activeElement.dataset.action] : null;
  at("find").hidden = conversations.length === 0 && !search;
  const matching = conversations.map((conversation) => [conversation, search ? search.match(conversation) : {}]).filter(([, match]) => match);
  list.replaceChildren(...matching.map(([conversation, match]) => listItem(conversation, match, conversation.id === currentId, actions)));
  at("list-empty").hidden = matching.length > 0;
  at("list-empty").textContent = !search ? "What you ask is kept here, in this browser alone." : isComplete ? "No conversation has that." : "Searching …";
  at("export-all").hidden = conversations.length === 0;
  if (focused) buttonOf(...focused)?.focus();
}

/** Return the button of a conversation that does something, such as `remove`; undefined if it is not shown. */
const buttonOf = (id, action) => at("list").querySelector(`li[data-id="${CSS.escape(id)}"] [data-action="${action}"]`);

const titleShown = (title) => String(title ?? "").trim() || "Untitled";

function listItem(conversation, { message, excerpt }, isCurrent, actions) {
  const { id, title, updated } = conversation;
  const action = (name, label, onclick) => {
    const element = button(label, onclick, { ariaLabel: `${label} “${titleShown(title)}”` });
    element.dataset.action = name;
    return element;
  };
  const open = button(titleShown(title), () => actions.open(id, message), { className: "plain title", dir: "auto", title: new Date(updated).toLocaleString() });
  open.dataset.action = "open";
  const item = make("li", {}, open);
  item.dataset.id = id;
  if (excerpt) item.append(make("p", { className: "excerpt", dir: "auto" }, excerpt[0], make("mark", { textContent: excerpt[1] }), excerpt[2]));
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
  const input = make("input", { value: titleShown(title), maxLength: TITLE_MAX_CHARACTERS, dir: "auto", ariaLabel: "Title of the conversation" });
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
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !isComposed(event)) { event.stopPropagation(); end(false); }
    if (event.key === "Enter" && isComposed(event)) event.preventDefault();
  });
  input.addEventListener("blur", () => end(true));
  open.replaceWith(form);
  input.select();
}
