"use strict";
// Messages as elements: a question with its edit, an answer with its facts, the versions of both, and thinking.

// Why an answer has ended, in words for its reader.
const REASONS = {
  stop: "", edited: "corrected by you", length: "reached the limit on tokens", stopped: "stopped by you", interrupted: "cut off when the page was closed", tool_calls: "asks for a tool",
};
const UNFINISHED = new Set(["length", "stopped", "interrupted", "edited"]); // reasons after which an answer can go on

const canGoOn = ({ role, content, error, facts }) => role === "assistant" && Boolean(content) && (Boolean(error) || UNFINISHED.has(facts?.reason));

/**
 * Create the item of a message.
 *
 * `actions` are functions: `edit(message, text)`, `again()`, `goOn()`, `show(message)` for another version of a message.
 */
function messageItem(message, actions) {
  const isUser = message.role === "user";
  const item = make("li", { className: message.role }, make("h2", { textContent: isUser ? "You" : message.model || "Model" }),
    make("div", { className: "text", dir: "auto" }), make("div", { className: "facts" }));
  renderText(item, message);
  renderFacts(item, message, actions);
  return item;
}

function renderText(item, message) {
  const box = item.querySelector(".text");
  if (message.thinking) {
    if (!item.querySelector(".thinking")) box.before(make("details", { className: "thinking" }, make("summary", { textContent: "Thinking" }), make("p", { dir: "auto" })));
    item.querySelector(".thinking p").textContent = message.thinking;
  }
  if (message.role === "user") box.replaceChildren(...imagesOf(message), ...fileElements(message), message.content);
  else renderMarkdown(box, message.content, !item.hasAttribute("aria-busy"));
  item.querySelector(".error")?.remove();
  if (message.error) box.after(make("p", { className: "error", role: "alert", textContent: message.error }));
}

const imagesOf = ({ images = [] }) => (images.length ? [make("span", { className: "images" }, ...imageElements(images))] : []);

/** Show the facts of a message, and what can be done with it unless it is still being written. */
function renderFacts(item, message, { edit, again, goOn, show, versions }) {
  const { tokens, rate, first, reason } = message.facts ?? {};
  const texts = [
    tokens === undefined ? "" : `${tokens} ${tokens === 1 ? "token" : "tokens"}`,
    rate ? `${rate.toFixed(1)} tokens/s` : "",
    first === undefined ? "" : `${first.toFixed(2)} s to the first`,
    REASONS[reason] ?? reason ?? "",
  ];
  const parts = texts.filter(Boolean).map((text) => make("span", { textContent: text }));
  if (!item.hasAttribute("aria-busy")) {
    const actions = make("span", { className: "actions" }), all = versions(message);
    if (all.length > 1 && all.includes(message)) actions.append(versionsOf(message, all, show));
    if (message.role === "user") actions.append(button("Edit", () => editText(item, message, edit)));
    else if (message.content) {
      actions.append(button("Copy", (event) => copy(message.content, event.target)), button("Correct", () => editText(item, message, edit), { title: "Edit this answer" }));
    }
    if (item === item.parentElement?.lastElementChild) {
      if (canGoOn(message)) actions.append(button("Continue", goOn));
      actions.append(button("Try again", again));
    }
    parts.push(actions);
  }
  item.querySelector(".facts").replaceChildren(...parts);
}

function versionsOf(message, all, show) {
  const index = all.indexOf(message);
  const step = (label, name, other) => button(label, () => show(other), { ariaLabel: name, disabled: !other });
  return make("span", { className: "versions", role: "group", ariaLabel: `Version ${index + 1} of ${all.length}` },
    step("‹", "Previous version", all[index - 1]), make("span", { textContent: `${index + 1}/${all.length}` }), step("›", "Next version", all[index + 1]));
}

/** Put a form in the place of a message. It asks the new question, or keeps the new answer, beside the old one. */
function editText(item, message, edit) {
  const isUser = message.role === "user";
  const text = make("textarea", { value: message.content, rows: 3, dir: "auto", ariaLabel: isUser ? "Edit the message" : "Correct the answer" });
  const close = () => { form.replaceWith(box); item.querySelector(".facts").hidden = false; item.querySelector(".facts button")?.focus(); };
  const form = make("form", { className: "edit" }, text,
    make("span", { className: "row" }, make("button", { className: "solid", type: "submit", textContent: isUser ? "Send" : "Save" }), button("Cancel", close)));
  form.addEventListener("submit", (event) => { event.preventDefault(); if (text.value.trim() || message.images || message.files) edit(message, text.value); });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !isComposed(event)) { event.stopPropagation(); close(); }
    if (event.target === text && sends(event)) { event.preventDefault(); form.requestSubmit(); }
  });
  const box = item.querySelector(".text");
  box.replaceWith(form);
  item.querySelector(".facts").hidden = true;
  text.focus();
  text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight / 2)}px`;
}

async function copy(text, button) {
  const label = button.textContent;
  try { await copyText(text); button.textContent = "Copied"; announce("Copied."); }
  catch { button.textContent = "The browser refused"; }
  setTimeout(() => { button.textContent = label; }, 1500);
}
