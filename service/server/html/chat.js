"use strict";
// The chat: one conversation at a time, what is kept of it, and what the page shows of it.

const PROMPTS = ["What can you do?", "Tell me a short story.", "Explain how a language model writes, in three sentences."];
const JSON_TYPE = "application/json";
const FIND_AFTER_MS = 150; // of the last letter
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
  // What was asked meanwhile is shown, and its answer or error is no message yet.
  if (!state.chat.messages.size) renderMessages();
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
  at("send-hint").textContent = isPhone.matches ? "Enter begins a new line." : "Enter sends, Shift + Enter begins a new line, Alt + Shift + N a new chat.";
  at("draft").enterKeyHint = isPhone.matches ? "enter" : "send";
};
isPhone.addEventListener("change", showKeys);
showKeys();
at("draft").addEventListener("input", () => setDraft(at("draft").value));
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
at("find").addEventListener("input", find);
at("find").addEventListener("keydown", (event) => { if (event.key === "Escape" && at("find").value) event.stopPropagation(); }); // which empties it
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); at("draft").focus(); }); // the address stays
addEventListener("popstate", openAddressed);
at("notice-close").addEventListener("click", () => { NOTICES.clear(); notice("", ""); at("draft").focus(); });
at("options").addEventListener("input", renderCode);
at("schema").addEventListener("change", optionsProblem);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || isComposed(event) || at("confirm").open) return;
  const covering = isWide.matches ? null : ["chats", "options"].find((name) => !at(name).hidden);
  if (covering) closePanel(covering); else stop();
});
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
