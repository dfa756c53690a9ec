"use strict";
// The chat: one conversation at a time, its answers, and what the page shows of the service.

const PROMPTS = ["What can you do?", "Tell me a short story.", "Explain how a language model writes, in three sentences."];
const JSON_TYPE = "application/json";
const FIND_AFTER_MS = 150; // of the last letter
const SAVE_EVERY_MS = 1000; // of an answer that is being written
const announce = (text) => { at("announcer").textContent = text; };

/** Return a chat: a conversation, its messages by id, and whether the store may lack some of it. */
const chatOf = (conversation, messages = [], isBehind = false) => ({
  conversation, messages: new Map(messages.map((message) => [message.id, message])), isBehind, writing: Promise.resolve(),
});
const emptyChat = () => chatOf({ id: newId(), title: "", created: Date.now(), updated: Date.now(), model: "", options: {}, leaf: null }, [], true);

// `images` and `files` are those of the next message.
const state = { models: [], model: "", chat: emptyChat(), running: null, tab: "curl", conversations: [], isRestored: false, images: [], files: [] };
let store = null; // where the browser allows one

// What is kept

const NOTICES = new Map(); // by subject, the texts that stay until they are no longer so or are dismissed
function notice(subject, text) {
  if (text) NOTICES.set(subject, text); else NOTICES.delete(subject);
  at("notice").hidden = NOTICES.size === 0;
  const shown = [...NOTICES.values()].join(" ");
  if (at("notice-text").textContent !== shown) at("notice-text").textContent = shown;
}

const storeProblem = (error) => {
  if (error.name === "QuotaExceededError") return "The browser's store is full, so this conversation is not kept. Export it, or delete others and go on.";
  if (error.name === "VersionError") return "A newer version of this page keeps conversations in this browser. They are untouched; what you ask here is not kept.";
  return `The browser keeps no conversations (${error.message || error.name}). Export what you want to keep.`;
};

/** Write fields of a chat's conversation and some of its messages; all of it, if the store may lack some. */
function persist(chat, fields, messages) {
  const { conversation } = chat;
  Object.assign(conversation, fields);
  chat.writing = chat.writing.then(async () => {
    if (!store) { renderConversations(); return; }
    try {
      await store.write(conversation.id, chat.isBehind ? conversation : fields, chat.isBehind ? [...chat.messages.values()] : messages);
      chat.isBehind = false;
      notice("store", "");
    } catch (error) {
      chat.isBehind = true;
      notice("store", storeProblem(error));
    }
    await refreshList();
  });
  return chat.writing;
}

async function refreshList() {
  if (store) state.conversations = await store.list().catch((error) => { notice("store", storeProblem(error)); return state.conversations; });
  renderConversations();
}
/** List what is kept, and first the chat that is shown, if it could not be kept. */
function renderConversations() {
  const { chat, conversations } = state, { id } = chat.conversation;
  const isListed = chat.messages.size === 0 || conversations.some((conversation) => conversation.id === id);
  renderList(isListed ? conversations : [chat.conversation, ...conversations], id, LIST_ACTIONS, found.search, found.isComplete);
  showTitle();
}
const showTitle = () => { document.title = `${state.chat.conversation.title || state.model || "Chat"} · Levserve`; };

let found = { search: null, isComplete: true };
/** Search the titles and the messages for what is in the box: the titles at once, the messages soon. */
async function find() {
  const wanted = at("find").value.trim(), search = wanted ? new Search(wanted) : null, mine = { search, isComplete: !search };
  const isWanted = () => found === mine;
  found = mine;
  renderConversations();
  if (!search) return;
  await new Promise((resolve) => setTimeout(resolve, FIND_AFTER_MS));
  if (!isWanted()) return;
  const { chat } = state;
  for (const message of chat.messages.values()) search.read({ ...message, conversation: chat.conversation.id });
  await store?.readAll((message) => search.read(message), isWanted).catch((error) => notice("store", storeProblem(error)));
  if (!isWanted()) return;
  mine.isComplete = true;
  renderConversations();
  const count = at("list").children.length;
  announce(`${count} ${count === 1 ? "conversation" : "conversations"} found.`);
}

const path = () => pathTo(state.chat.conversation.leaf, state.chat.messages);

/** Show a chat, once the answer of the one before has ended; with its own address, unless it is `of` that which the page has. */
async function show(chat, of) {
  await stop();
  if (of === undefined) setAddress(chat.messages.size ? chat.conversation.id : null);
  else if (of !== addressed()) return; // the reader went on
  state.chat = chat;
  showOptionsOf(chat.conversation.options ?? {});
  if (state.models.some(({ id }) => id === chat.conversation.model)) chooseModel(chat.conversation.model);
  notice("removed", "");
  notice("address", "");
  renderMessages();
  renderConversations();
  follow();
}

const LIST_ACTIONS = {
  async open(id, message) {
    if (!isWide.matches) showPanel("chats", false);
    if (id !== state.chat.conversation.id) await openStored(id);
    if (message) showMessage(message);
    at("draft").focus({ preventScroll: true });
  },
  async rename(id, title) {
    if (id === state.chat.conversation.id) await persist(state.chat, { title }, []);
    else await store.write(id, { title }).then(refreshList);
  },
  async save(id) {
    const { conversation, messages } = id === state.chat.conversation.id
      ? { conversation: state.chat.conversation, messages: [...state.chat.messages.values()] } : await store.read(id);
    download(exported([{ conversation, messages }]), `${titleOf(conversation.title).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation"}.json`, JSON_TYPE);
  },
  async remove(id, title) {
    if (!await confirmed(title, () => buttonOf(id, "remove"))) return;
    await store?.remove(id).catch((error) => notice("store", storeProblem(error)));
    if (id === state.chat.conversation.id) await show(emptyChat());
    await refreshList();
    at("draft").focus();
    announce("Deleted.");
  },
  render: () => renderConversations(),
};

/** Show a conversation of the store, and return whether it is there; says so if it is damaged. */
async function openStored(id, of) {
  try {
    const stored = await store?.read(id);
    if (stored) await show(chatOf(stored.conversation, stored.messages), of);
    return Boolean(stored);
  } catch (error) {
    notice("store", `This conversation cannot be read (${error.message}).`);
    return false;
  }
}

/** Show the conversation that the address names, or a new chat. */
async function openAddressed() {
  const id = addressed(), { chat } = state;
  if (id === (chat.messages.size ? chat.conversation.id : null)) return;
  if (id !== null && await openStored(id, id)) return;
  await show(emptyChat(), id);
  if (id !== null && id === addressed()) {
    notice("address", "The conversation of this address is not in this browser: it was deleted, or is kept in another one. Below is a new chat.");
  }
}

/** Bring a message into sight, on the branch that it is on. */
function showMessage(id) {
  const { chat } = state, message = chat.messages.get(id);
  if (!message) return;
  if (!path().includes(message)) ACTIONS.show(message);
  at("messages").children[path().indexOf(message)]?.scrollIntoView({ block: "start" });
}

/** Take over what another tab has written of the conversation shown here. */
async function takeOver(id, isRemoved) {
  await refreshList();
  const { chat } = state;
  if (id !== chat.conversation.id) return;
  if (isRemoved) {
    chat.isBehind = true;
    notice("removed", "This conversation was deleted in another tab. It stays here until you leave it; your next message keeps it again.");
    return;
  }
  const stored = await store.read(id);
  if (!stored || chat !== state.chat || state.running || at("messages").querySelector(".edit")) return;
  const before = JSON.stringify(path());
  chat.conversation.title = stored.conversation.title;
  const all = new Map([...chat.messages.values(), ...stored.messages].map((message) => [message.id, message]));
  chat.messages = new Map([...all].sort(([one], [other]) => (one < other ? -1 : 1)));
  const leaf = chat.messages.get(chat.conversation.leaf);
  // Another tab's answer is followed once it is complete; what is asked here until then is a branch.
  const newest = leaf && chat.messages.get(newestLeaf(leaf, chat.messages));
  if (newest?.role === "assistant" && newest.facts?.reason !== "interrupted") chat.conversation.leaf = newest.id;
  if (JSON.stringify(path()) !== before) renderMessages();
}

/** Keep a conversation that an earlier version of this page kept in the tab. */
async function keepOfEarlierVersion() {
  const text = kept("sessionStorage", "levserve.conversation");
  if (!text) return;
  try { await keepImported(imported(text)); } catch (error) { notice("earlier", `The conversation of an earlier version of this page cannot be read: ${error.message}.`); }
  kept("sessionStorage", "levserve.conversation", null);
}

async function keepImported(all) {
  let first = null;
  for (const { conversation, messages } of all) {
    const chat = chatOf(conversation, messages, true);
    first ??= chat;
    await persist(chat, {}, []);
    if (chat.isBehind) break; // the store is full, or not there
  }
  if (first) await show(first);
}

async function openStore() {
  try {
    store = await Conversations.open();
    store.onChange(takeOver);
    store.onTakenOver(() => { store = null; state.chat.isBehind = true; notice("store", "A newer version of this page was opened in another tab. Reload this one to go on."); });
  } catch (error) { notice("store", storeProblem(error)); }
  await refreshList();
  await keepOfEarlierVersion();
  await openAddressed();
  state.isRestored = true;
  renderMessages();
}

// Questions and answers

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

/** Make these the images of the next message. */
function attach(images) {
  state.images = images;
  renderAttached(at("attached"), images, (index) => { attach(images.toSpliced(index, 1)); at("draft").focus(); });
  renderCode();
}

/** Make these the files of the next message. */
function attachTexts(files) {
  state.files = files;
  renderFiles(at("attached-files"), files, (file) => { attachTexts(state.files.filter((other) => other !== file)); at("draft").focus(); });
  renderCode();
}

/** Attach pictures as images, if the model sees, and all else as text. */
function attachFiles(files) {
  const pictures = files.filter(isPicture), texts = files.filter((file) => !isPicture(file));
  if (pictures.length && canSee()) attachPictures(pictures);
  else if (pictures.length) notice("image", `${state.model || "This model"} reads text alone.`);
  for (const file of texts) attachText(file);
  at("draft").focus();
}

async function attachText(file) {
  const attached = { name: file.name, text: null }, others = () => state.files.filter((other) => other !== attached);
  attachTexts([...state.files, attached]);
  try {
    attached.text = await textOf(file); // meanwhile others may be attached
    attachTexts(state.files);
    announce(`${file.name} is attached.`);
  } catch (error) {
    attachTexts(others());
    if (error.status === 401) askForKey(error.message);
    notice("file-text", error.status ? `${file.name}: ${error.message}` : `${file.name} ${error.message}.`);
  }
}

async function attachPictures(files) {
  for (const file of files) {
    try {
      const url = await dataUrlOf(file); // meanwhile others may be attached
      attach([...state.images, url]);
      announce(`Image ${state.images.length} is attached.`);
    } catch { notice("image", `${file.name} cannot be read as an image.`); }
  }
  at("draft").focus();
}

const canSee = () => state.models.find(({ id }) => id === state.model)?.modalities?.input?.includes("image") ?? false;

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

// What is shown

function renderMessages() {
  const shown = path();
  at("messages").replaceChildren(...shown.map((message) => messageItem(message, ACTIONS)));
  const newest = shown.at(-1);
  if (newest) renderFacts(at("messages").lastElementChild, newest, ACTIONS);
  at("welcome").hidden = !state.model || !state.isRestored || shown.length > 0;
  renderCode();
}

function showRunning() {
  const isRunning = state.running !== null, hadFocus = document.activeElement;
  document.body.classList.toggle("is-running", isRunning);
  at("send").hidden = isRunning;
  at("stop").hidden = !isRunning;
  if (!isRunning && hadFocus === at("stop")) at("draft").focus();
  renderCode();
}

// Follow the text unless the reader has scrolled up.
let follows = true;
const stick = () => { if (follows) at("scroll").scrollTop = at("scroll").scrollHeight; };
const follow = () => { follows = true; at("newest").hidden = true; stick(); };
at("scroll").addEventListener("scroll", () => {
  const box = at("scroll");
  follows = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
  at("newest").hidden = follows;
});
at("newest").addEventListener("click", () => { follow(); at("draft").focus(); });

const beginning = ({ name, text }) => ({ name, text: text.length > 200 ? `${text.slice(0, 200)}…` : text });
const shortened = (url) => `${url.slice(0, url.indexOf(",") + 9)}…`;

/** The request that would be sent now, as a command or a program; of images, the beginning. */
function codeOf(kind) {
  const draft = at("draft").value.trim(), shown = path(), { images } = state, files = state.files.filter(({ text }) => text !== null);
  const isNew = draft || images.length || files.length || shown.at(-1)?.role !== "user";
  const asked = isNew ? [{ role: "user", content: draft || (images.length || files.length ? "" : "Hello"), images, files }] : [];
  const all = [...shown, ...(state.running ? [] : asked)];
  const body = bodyOf(all.map((message) => ({ ...message, images: message.images?.map(shortened), files: message.files?.map(beginning) })));
  return kind === "curl" ? curlOf(body) : pythonOf(body);
}
const renderCode = () => { if (!at("options").hidden) at("code").textContent = codeOf(state.tab); };

// The panels at the sides, which on a narrow screen cover the chat

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

// The service

function showState(kind, text) {
  at("state").dataset.state = kind;
  at("state-text").textContent = text;
  at("state-text").title = text;
}

function askForKey(problem = "") {
  const hasFocus = document.activeElement === at("key");
  at("ask-key").hidden = false;
  at("welcome").hidden = at("start").hidden = at("composer").hidden = true;
  at("key-hint").textContent = key === null ? "" : problem;
  setKey(null);
  at("forget-key").hidden = true;
  showState("waiting", "needs a key");
  if (!hasFocus) at("key").focus();
}

const isChat = ({ capabilities }) => !capabilities || capabilities.includes("chat/completions");
const MODEL_STATES = { available: "loads when asked", loading: "is loading" };

function chooseModel(id) {
  state.model = at("model").value = id;
  at("welcome-model").textContent = id;
  showTitle();
  at("attach").hidden = !canSee();
  if (!canSee() && state.images.length) attach([]);
  renderCode();
}

function showModels(models) {
  state.models = models;
  const options = models.map(({ id, error, state: of }) => make("option", { value: id, title: error ?? "", textContent: error ? `${id} (cannot be loaded)` : MODEL_STATES[of] ? `${id} (${MODEL_STATES[of]})` : id }));
  at("model").replaceChildren(...options);
  at("model").hidden = models.length < 2;
  const wanted = [state.model, state.chat.conversation.model, kept("localStorage", "levserve.model")];
  chooseModel(wanted.find((id) => models.some((model) => model.id === id)) ?? models[0].id);
}

/** Ask which models there are; returns false if that needs a key, or if none of them chats. */
async function readModels() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.status === 401) { askForKey((await failure(response)).message); return false; }
  if (!response.ok) throw await failure(response);
  const models = (await response.json()).data;
  const chats = models.filter(isChat), writers = models.filter(({ capabilities }) => capabilities?.includes("completions"));
  // What a model can do is known once it was loaded.
  const hears = ({ capabilities }) => capabilities?.includes("audio/transcriptions") ?? false;
  at("vectors").hidden = models.every((model) => hears(model) || model.capabilities?.includes("completions"));
  at("hear").hidden = !models.some(hears);
  if (!chats.length && !writers.length) { location.replace(models.some(hears) ? "hear" : "vectors"); return false; }
  const known = chats.filter(({ capabilities }) => capabilities);
  showModels(chats.length ? [...known, ...chats.filter((model) => !known.includes(model))] : writers);
  return true;
}

let isOpen = false;
async function open() {
  if (!await readModels()) return false;
  at("ask-key").hidden = at("start").hidden = true;
  at("composer").hidden = false;
  at("forget-key").hidden = key === null;
  if (!isOpen && document.activeElement === document.body) at("draft").focus({ preventScroll: true });
  isOpen = true;
  announce("The model is ready.");
  renderMessages();
  follow();
  return true;
}

async function watch() {
  let wait = 500;
  try {
    const response = await fetch("health/ready"), progress = await response.json();
    if (response.ok) {
      if (at("ask-key").hidden && (isOpen ? state.models.length < 2 || await readModels() : await open())) {
        const missing = progress.executables_total - progress.executables_done;
        const compiling = progress.status === "answering" && missing > 0 ? `${missing} executables still compiling` : "";
        showState("ready", [...(state.models.length < 2 ? [state.model] : []), ...(compiling ? [compiling] : [])].join(", "));
      }
      wait = progress.status === "answering" ? 2000 : 15000;
    } else if (progress.status === "starting" || progress.status === "answering") {
      isOpen = false;
      at("start").hidden = state.chat.messages.size > 0;
      at("welcome").hidden = at("ask-key").hidden = true;
      showStart(progress);
      showState("starting", progress.percent ? `starting, ${progress.percent} %` : "starting");
    } else {
      isOpen = false;
      showState("failed", progress.status === "draining" ? "stopping" : "stopped");
      wait = 2000;
    }
  } catch {
    showState("failed", "not reachable");
    wait = 2000;
  }
  setTimeout(watch, wait);
}

// Wiring

const setDraft = (text) => {
  at("draft").value = text;
  kept("sessionStorage", "levserve.draft", text || null);
  const draft = at("draft");
  if (!CSS.supports("field-sizing", "content")) {
    draft.style.height = "auto";
    draft.style.height = `${draft.scrollHeight}px`;
  }
  renderCode();
};

at("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("draft").addEventListener("keydown", (event) => {
  if (sends(event)) { event.preventDefault(); send(); }
});
const showKeys = () => {
  at("send-hint").textContent = isPhone.matches ? "Enter begins a new line." : "Enter sends, Shift + Enter begins a new line.";
  at("draft").enterKeyHint = isPhone.matches ? "enter" : "send";
};
isPhone.addEventListener("change", showKeys);
showKeys();
at("draft").addEventListener("input", () => setDraft(at("draft").value));
at("attach").addEventListener("click", () => at("image-files").click());
at("image-files").addEventListener("change", async () => {
  attachFiles([...at("image-files").files]);
  at("image-files").value = "";
});
at("attach-file").addEventListener("click", () => at("text-files").click());
at("text-files").addEventListener("change", () => {
  attachFiles([...at("text-files").files]);
  at("text-files").value = "";
});
at("draft").addEventListener("paste", (event) => {
  const files = filesOf(event.clipboardData);
  if (files.length) { event.preventDefault(); attachFiles(files); }
});
takeDropped((files) => { if (!at("composer").hidden) attachFiles(files); });
at("stop").addEventListener("click", stop);
async function startNew() {
  const options = readOptions();
  await show(emptyChat());
  showOptionsOf(options);
  if (!isWide.matches) showPanel("chats", false);
  at("draft").focus();
}
at("new").addEventListener("click", startNew);
document.addEventListener("keydown", (event) => {
  if (!isNewChat(event) || at("confirm").open || at("composer").hidden) return;
  event.preventDefault();
  startNew();
});
at("model").addEventListener("change", () => {
  chooseModel(at("model").value);
  kept("localStorage", "levserve.model", state.model);
});
at("find").addEventListener("input", find);
at("find").addEventListener("keydown", (event) => { if (event.key === "Escape" && at("find").value) event.stopPropagation(); }); // which empties it
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); at("draft").focus(); }); // the address stays
addEventListener("popstate", openAddressed);
at("notice-close").addEventListener("click", () => { NOTICES.clear(); notice("", ""); at("draft").focus(); });
at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey(at("key").value.trim());
  at("key").value = "";
  try { if (await open()) showState("ready", state.models.length < 2 ? state.model : ""); } catch (error) { at("key-hint").textContent = error.message; }
});
at("forget-key").addEventListener("click", () => { setKey(null); isOpen = false; askForKey(); });
at("options").addEventListener("input", renderCode);
at("schema").addEventListener("change", optionsProblem);
isWide.addEventListener("change", arrangePanels);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || isComposed(event) || at("confirm").open) return;
  const covering = isWide.matches ? null : ["chats", "options"].find((name) => !at(name).hidden);
  if (covering) closePanel(covering); else stop();
});
const selectTab = (kind) => {
  state.tab = kind;
  for (const name of ["curl", "python"]) {
    at(`tab-${name}`).setAttribute("aria-selected", String(name === kind));
    at(`tab-${name}`).tabIndex = name === kind ? 0 : -1;
  }
  at("code").setAttribute("aria-labelledby", `tab-${kind}`);
  renderCode();
};
for (const kind of ["curl", "python"]) {
  at(`tab-${kind}`).addEventListener("click", () => selectTab(kind));
  at(`tab-${kind}`).addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const other = kind === "curl" ? "python" : "curl";
    selectTab(other);
    at(`tab-${other}`).focus();
  });
}
at("copy-code").addEventListener("click", (event) => copy(codeOf(state.tab), event.target));
at("export-all").addEventListener("click", async () => {
  const all = await Promise.all(state.conversations.map(({ id }) => store.read(id)));
  download(exported(all.filter(Boolean)), `conversations-${new Date().toISOString().slice(0, 10)}.json`, JSON_TYPE);
});
at("import").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  if (!file) return;
  try {
    await keepImported(imported(await file.text()));
    notice("file", "");
    announce(`${file.name} is open.`);
  } catch (error) { notice("file", `${file.name} cannot be opened: ${error.message}.`); }
  at("file").value = "";
});
addEventListener("beforeunload", (event) => { if (state.chat.isBehind && state.chat.messages.size) event.preventDefault(); });

const showTheme = () => { at("theme").textContent = `Theme: ${theme}`; };
at("theme").addEventListener("click", () => { setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]); showTheme(); });
showTheme();

for (const text of PROMPTS) at("prompts").append(make("li", {}, make("button", { type: "button", textContent: text, onclick: () => ask(text) })));
setDraft(kept("sessionStorage", "levserve.draft") ?? "");
arrangePanels();
openStore();
watch();
