"use strict";
// Questions, and the answers to them: asked, stopped, tried again, continued, corrected.

const SAVE_EVERY_MS = 1000; // of an answer that is being written

const ACTIONS = {
  again,
  goOn,
  edit: (message, text) => (message.role === "user" ? ask(text, message.parent, message) : correct(message, text)),
  show: (message) => {
    if (state.running) return;
    persist(state.chat, { leaf: newestLeaf(message, state.chat.messages) }, []);
    renderMessages();
  },
  versions: (message) => siblings(message, state.chat.messages),
};

const bodyOf = (messages) => chatBody(state.model, at("system").value, messages.filter(({ content, images, files }) => content || images || files), optionFields());

/** Have the model answer the newest question, or go on with an answer that is the last, and keep the answer beside earlier ones. */
async function answer(unfinished = null) {
  const { chat } = state, controller = new AbortController(), began = performance.now();
  const start = { content: unfinished?.content ?? "", tokens: unfinished?.facts?.tokens ?? 0 };
  const message = {
    id: newId(), parent: unfinished ? unfinished.parent : chat.conversation.leaf, role: "assistant", model: state.model, content: start.content, facts: {},
    ...(unfinished?.thinking ? { thinking: unfinished.thinking } : {}),
  };
  const shown = path(), body = bodyOf(shown), item = messageItem(message, ACTIONS);
  if (unfinished) at("messages").lastElementChild.remove();
  const before = at("messages").lastElementChild;
  item.setAttribute("aria-busy", "true");
  at("messages").append(item);
  if (before) renderFacts(before, shown.at(unfinished ? -2 : -1), ACTIONS); // it is no longer the last
  let first = 0, last = 0, savedMs = began, outcome = "", isWaiting = false, paintMs = 0;
  const paint = () => {
    const start = performance.now();
    isWaiting = false;
    renderText(item, message);
    renderFacts(item, message, ACTIONS);
    stick();
    paintMs = performance.now() - start;
  };
  // A long answer takes a while to show: three quarters of the time stay free for the reader.
  const paintSoon = () => {
    if (isWaiting) return;
    isWaiting = true;
    setTimeout(() => requestAnimationFrame(() => { if (isWaiting) paint(); }), 3 * paintMs);
  };
  const save = (facts = message.facts) => {
    savedMs = performance.now();
    chat.messages.set(message.id, message);
    return persist(chat, { leaf: message.id, updated: Date.now() }, [{ ...message, facts }]);
  };
  const read = async () => {
    const options = { include_usage: true, continuous_usage_stats: true };
    const response = await fetch(CHAT_ROUTE, {
      method: "POST", headers: headers(), signal: controller.signal, body: JSON.stringify({ ...body, stream: true, stream_options: options }),
    });
    if (!response.ok) throw await failure(response);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const [choice] = event.choices ?? [], part = choice?.delta?.content ?? "", thought = choice?.delta?.reasoning_content ?? "";
      if (part || thought) {
        last = performance.now();
        if (!first) { first = last; message.facts.first = (first - began) / 1000; }
        message.content += part;
        if (thought) message.thinking = (message.thinking ?? "") + thought;
        if (last - savedMs > SAVE_EVERY_MS) save({ ...message.facts, reason: "interrupted" });
      }
      if (event.usage) {
        const count = event.usage.completion_tokens;
        message.facts.tokens = start.tokens + count;
        message.facts.prompt = event.usage.prompt_tokens;
        if (count > 1 && last > first) message.facts.rate = (count - 1) / ((last - first) / 1000);
      }
      if (choice?.finish_reason) message.facts.reason = choice.finish_reason;
      paintSoon();
    }
  };
  const over = read().then(() => { outcome = `Answer complete. ${message.content.slice(0, 400)}`; }, (error) => {
    if (error.name === "AbortError") { message.facts.reason = "stopped"; outcome = "Stopped."; return; }
    message.error = error.message;
    if (error.status === 401) askForKey(error.message);
  }).finally(() => {
    isWaiting = false;
    state.running = null;
    item.removeAttribute("aria-busy");
    // Without a token there is no message to keep.
    const hasText = message.content !== start.content || Boolean(message.thinking && !unfinished), saving = hasText ? save() : null;
    if (hasText || message.error) paint();
    else renderMessages();
    showRunning();
    return saving;
  }).then(() => { if (outcome) announce(outcome); });
  state.running = { controller, over };
  showRunning();
  follow();
  return over;
}

async function stop() {
  state.running?.controller.abort();
  await state.running?.over;
}

/** Ask a question below a message, by default the newest that is shown. */
function ask(text, parent = state.chat.conversation.leaf, { images = [], files = [] } = {}) {
  if (state.running || !(text.trim() || images.length || files.length) || !areOptionsRight()) return;
  const { chat } = state, { conversation, messages } = chat;
  const message = { id: newId(), parent, role: "user", content: text, ...(images.length ? { images } : {}), ...(files.length ? { files } : {}) };
  messages.set(message.id, message);
  const title = conversation.title || titleOf(text) || titleOf(files[0]?.name ?? "") || "Image";
  persist(chat, { leaf: message.id, title, model: state.model, options: readOptions(), updated: Date.now() }, [message]);
  setAddress(conversation.id, true);
  renderMessages();
  answer();
}

function send() {
  const text = at("draft").value, { images, files } = state;
  if (state.running || !(text.trim() || images.length || files.length) || !areOptionsRight()) return;
  if (files.some((file) => file.text === null)) { announce("A file is still being read."); return; }
  setDraft("");
  attach([]);
  attachTexts([]);
  notice("file-text", "");
  ask(text, state.chat.conversation.leaf, { images, files });
}

function again() {
  if (state.running || !areOptionsRight()) return;
  const { conversation } = state.chat, leaf = path().at(-1);
  if (leaf?.role === "assistant") conversation.leaf = leaf.parent;
  if (conversation.leaf === null) return;
  renderMessages();
  answer();
}

/** Have the model go on with an answer that was cut. */
function goOn() {
  const last = path().at(-1);
  if (state.running || !canGoOn(last) || !areOptionsRight()) return;
  if (optionFields().response_format) {
    notice("schema", "An answer that follows a schema cannot be continued, since the schema is of a whole one. Try again with more tokens.");
    return;
  }
  notice("schema", "");
  answer(last);
}

/** Keep an answer as the reader has corrected it, beside the one of the model. */
function correct({ parent, model }, content) {
  const message = { id: newId(), parent, role: "assistant", model, content, facts: { reason: "edited" } };
  state.chat.messages.set(message.id, message);
  persist(state.chat, { leaf: message.id, updated: Date.now() }, [message]);
  renderMessages();
}

function areOptionsRight() {
  const problem = optionsProblem();
  if (!problem) return true;
  showPanel("options", true);
  problem.input.focus();
  announce(problem.text);
  return false;
}
