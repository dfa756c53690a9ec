"use strict";
// The chat: one conversation at a time, its answers, and what the page shows of the service.

const PROMPTS = ["What can you do?", "Tell me a short story.", "Explain how a language model writes, in three sentences."];
const SAVE_EVERY_MS = 1000; // of an answer that is being written
const announce = (text) => { at("announcer").textContent = text; };

/** Return a chat: a conversation, its messages by id, and whether the store may lack some of it. */
const chatOf = (conversation, messages = [], isBehind = false) => ({
  conversation, messages: new Map(messages.map((message) => [message.id, message])), isBehind, writing: Promise.resolve(),
});
const emptyChat = () => chatOf({ id: newId(), title: "", created: Date.now(), updated: Date.now(), model: "", options: {}, leaf: null }, [], true);

// `images` are those of the next message.
const state = { models: [], model: "", chat: emptyChat(), running: null, tab: "curl", conversations: [], isRestored: false, images: [] };
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
  renderList(isListed ? conversations : [chat.conversation, ...conversations], id, LIST_ACTIONS);
}

const path = () => pathTo(state.chat.conversation.leaf, state.chat.messages);

/** Show a chat, once the answer of the one before has ended. */
async function show(chat) {
  await stop();
  state.chat = chat;
  showOptionsOf(chat.conversation.options ?? {});
  if (state.models.some(({ id }) => id === chat.conversation.model)) chooseModel(chat.conversation.model);
  kept("sessionStorage", "levserve.open", chat.messages.size ? chat.conversation.id : null);
  notice("removed", "");
  renderMessages();
  renderConversations();
  follow();
}

const LIST_ACTIONS = {
  async open(id) {
    if (!isWide.matches) showPanel("chats", false);
    if (id !== state.chat.conversation.id) await openStored(id);
    at("draft").focus();
  },
  async rename(id, title) {
    if (id === state.chat.conversation.id) await persist(state.chat, { title }, []);
    else await store.write(id, { title }).then(refreshList);
  },
  async save(id) {
    const { conversation, messages } = id === state.chat.conversation.id
      ? { conversation: state.chat.conversation, messages: [...state.chat.messages.values()] } : await store.read(id);
    offer(exported([{ conversation, messages }]), `${titleOf(conversation.title).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation"}.json`);
  },
  async remove(id, title) {
    if (!await confirmed(title)) return;
    await store?.remove(id).catch((error) => notice("store", storeProblem(error)));
    if (id === state.chat.conversation.id) await show(emptyChat());
    await refreshList();
    at("draft").focus();
    announce("Deleted.");
  },
  render: () => renderConversations(),
};

/** Show a conversation of the store; says so if it is not there or damaged. */
async function openStored(id) {
  try {
    const stored = await store.read(id);
    if (stored) await show(chatOf(stored.conversation, stored.messages));
    return Boolean(stored);
  } catch (error) {
    notice("store", `This conversation cannot be read (${error.message}).`);
    return false;
  }
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
  const open = kept("sessionStorage", "levserve.open");
  if (store && open && state.chat.messages.size === 0) await openStored(open);
  state.isRestored = true;
  renderMessages();
}

// Questions and answers

const ACTIONS = {
  again,
  edit: (message, text) => ask(text, message.parent, message.images),
  show: (message) => {
    if (state.running) return;
    persist(state.chat, { leaf: newestLeaf(message, state.chat.messages) }, []);
    renderMessages();
  },
  versions: (message) => siblings(message, state.chat.messages),
};

const bodyOf = (messages) => chatBody(state.model, at("system").value, messages.filter(({ content, images }) => content || images), optionFields());

/** Have the model answer the newest question, and keep the answer beside earlier ones. */
async function answer() {
  const { chat } = state, controller = new AbortController(), began = performance.now();
  const message = { id: newId(), parent: chat.conversation.leaf, role: "assistant", model: state.model, content: "", facts: {} };
  const body = bodyOf(path()), item = messageItem(message, ACTIONS), before = at("messages").lastElementChild;
  item.setAttribute("aria-busy", "true");
  at("messages").append(item);
  if (before) renderFacts(before, path().at(-1), ACTIONS); // it is no longer the last
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
        message.facts.tokens = event.usage.completion_tokens;
        message.facts.prompt = event.usage.prompt_tokens;
        if (message.facts.tokens > 1 && last > first) message.facts.rate = (message.facts.tokens - 1) / ((last - first) / 1000);
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
    const hasText = Boolean(message.content || message.thinking), saving = hasText ? save() : null;
    if (!hasText && !message.error) {
      item.remove();
      if (before) renderFacts(before, path().at(-1), ACTIONS);
    }
    paint();
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
function ask(text, parent = state.chat.conversation.leaf, images = []) {
  if (state.running || !(text.trim() || images.length) || !areOptionsRight()) return;
  const { chat } = state, { conversation, messages } = chat;
  const message = { id: newId(), parent, role: "user", content: text, ...(images.length ? { images } : {}) };
  messages.set(message.id, message);
  const title = conversation.title || titleOf(text) || "Image";
  persist(chat, { leaf: message.id, title, model: state.model, options: readOptions(), updated: Date.now() }, [message]);
  kept("sessionStorage", "levserve.open", conversation.id);
  renderMessages();
  answer();
}

function send() {
  const text = at("draft").value, images = state.images;
  if (state.running || !(text.trim() || images.length) || !areOptionsRight()) return;
  setDraft("");
  attach([]);
  ask(text, state.chat.conversation.leaf, images);
}

/** Make these the images of the next message. */
function attach(images) {
  state.images = images;
  renderAttached(at("attached"), images, (index) => { attach(images.toSpliced(index, 1)); at("draft").focus(); });
  renderCode();
}

async function attachFiles(files) {
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

const shortened = (url) => `${url.slice(0, url.indexOf(",") + 9)}…`;

/** The request that would be sent now, as a command or a program; of images, the beginning. */
function codeOf(kind) {
  const draft = at("draft").value.trim(), shown = path(), { images } = state;
  const isNew = draft || images.length || shown.at(-1)?.role !== "user";
  const asked = isNew ? [{ role: "user", content: draft || (images.length ? "" : "Hello"), images }] : [];
  const all = [...shown, ...(state.running ? [] : asked)];
  const body = bodyOf(all.map((message) => (message.images?.length ? { ...message, images: message.images.map(shortened) } : message)));
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
  document.title = `${id} · Levserve`;
  at("welcome-model").textContent = id;
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
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
at("draft").addEventListener("input", () => setDraft(at("draft").value));
at("attach").addEventListener("click", () => at("image-files").click());
at("image-files").addEventListener("change", async () => {
  await attachFiles(at("image-files").files);
  at("image-files").value = "";
});
at("draft").addEventListener("paste", (event) => {
  const files = canSee() ? imageFilesOf(event.clipboardData) : [];
  if (files.length) { event.preventDefault(); attachFiles(files); }
});
// What is dropped beside the text must not replace the page.
document.addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  if (canSee()) attachFiles(imageFilesOf(event.dataTransfer));
  else notice("image", `${state.model || "This model"} reads text alone.`);
});
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", async () => {
  const options = readOptions();
  await show(emptyChat());
  showOptionsOf(options);
  if (!isWide.matches) showPanel("chats", false);
  at("draft").focus();
});
at("model").addEventListener("change", () => {
  chooseModel(at("model").value);
  kept("localStorage", "levserve.model", state.model);
});
at("find").addEventListener("input", renderConversations);
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
  if (event.key !== "Escape" || at("confirm").open) return;
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
  offer(exported(all.filter(Boolean)), `conversations-${new Date().toISOString().slice(0, 10)}.json`);
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
