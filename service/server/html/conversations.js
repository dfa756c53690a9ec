"use strict";
// Conversations in the browser's IndexedDB: what is stored, how tabs share it, and the files of exports.
//
// A conversation is a tree: each message names its `parent`, an edited question and another try are siblings, and `leaf`
// is the message whose way to the root is shown. A finished message never changes, so tabs that go on with the same
// conversation add branches to it, and neither overwrites the other's.
//
// conversations  { id, title, created, updated, model, options, leaf }
// messages       { id, conversation, parent, role, content, images, files, model, thinking, facts, error }, indexed by conversation

const DATABASE = "levserve", DATABASE_VERSION = 1;
const FORMAT = "levserve-conversations", FORMAT_VERSION = 2;
const TITLE_MAX_CHARACTERS = 80;
const MESSAGES_AT_ONCE = 50; // they may have images

// Later ids sort behind earlier ones, as the store returns them. `crypto.randomUUID` is not there without TLS.
let lastIdTime = 0;
const newId = () => {
  lastIdTime = Math.max(Date.now(), lastIdTime + 1);
  return `${lastIdTime.toString(36).padStart(9, "0")}-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
};

const settled = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const committed = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("the browser aborted it"));
});

/** The store of conversations. Its methods reject with the browser's errors, of which `QuotaExceededError` says that it is full. */
class Conversations {
  #database;
  #tabs = new BroadcastChannel(DATABASE);

  constructor(database) { this.#database = database; }

  /**
   * Open the store, and create it in a browser that has none.
   *
   * Rejects with a VersionError if a newer page has written it; with another error if the browser forbids storage.
   */
  static async open() {
    const opening = indexedDB.open(DATABASE, DATABASE_VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return new Conversations(await settled(opening));
  }

  /** Call back with the id of a conversation that another tab has written or, if `isRemoved`, deleted. */
  onChange(callback) { this.#tabs.onmessage = ({ data }) => callback(data.id, data.isRemoved); }

  /** Call back when a newer page wants to open the store, which this page then no longer has. */
  onTakenOver(callback) { this.#database.onversionchange = () => { this.#database.close(); callback(); }; }

  /** Return all conversations without their messages, the latest first. */
  async list() {
    const all = await settled(this.#database.transaction("conversations").objectStore("conversations").getAll());
    return all.sort((one, other) => other.updated - one.updated);
  }

  /** Return a conversation and its messages, or null. */
  async read(id) {
    const transaction = this.#database.transaction(["conversations", "messages"]);
    const [conversation, messages] = await Promise.all([
      settled(transaction.objectStore("conversations").get(id)),
      settled(transaction.objectStore("messages").index("conversation").getAll(id)),
    ]);
    return conversation ? { conversation, messages } : null;
  }

  /** Call back with every message of the store, as long as `isWanted()`. */
  async readAll(callback, isWanted) {
    let last = "";
    for (;;) {
      const messages = await settled(this.#database.transaction("messages").objectStore("messages").getAll(IDBKeyRange.lowerBound(last, true), MESSAGES_AT_ONCE));
      if (!messages.length || !isWanted()) return;
      messages.forEach(callback);
      last = messages.at(-1).id;
    }
  }

  /** Write fields of a conversation and some of its messages; fields that are not named stay as another tab may have set them. */
  async write(id, fields, messages = []) {
    const transaction = this.#database.transaction(["conversations", "messages"], "readwrite"), done = committed(transaction);
    const conversations = transaction.objectStore("conversations");
    conversations.get(id).onsuccess = ({ target }) => conversations.put({ ...target.result, id, ...fields });
    for (const message of messages) transaction.objectStore("messages").put({ ...message, conversation: id });
    await done;
    this.#tabs.postMessage({ id, isRemoved: false });
  }

  /** Delete a conversation and its messages. */
  async remove(id) {
    const transaction = this.#database.transaction(["conversations", "messages"], "readwrite"), done = committed(transaction);
    transaction.objectStore("conversations").delete(id);
    transaction.objectStore("messages").index("conversation").getAllKeys(id).onsuccess = ({ target }) => {
      for (const key of target.result) transaction.objectStore("messages").delete(key);
    };
    await done;
    this.#tabs.postMessage({ id, isRemoved: true });
  }
}

// The tree of messages

/** Return the messages from the root to a leaf. */
function pathTo(leaf, messages) {
  const path = [];
  for (let at = messages.get(leaf); at && path.length <= messages.size; at = messages.get(at.parent)) path.unshift(at);
  return path;
}

/** Return the messages with the same parent, the oldest first. */
const siblings = (message, messages) => [...messages.values()].filter(({ parent }) => parent === message.parent);

/** Return the newest leaf below a message. */
function newestLeaf(message, messages) {
  for (;;) {
    const next = [...messages.values()].findLast(({ parent }) => parent === message.id);
    if (!next) return message.id;
    message = next;
  }
}

const titleOf = (text) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > TITLE_MAX_CHARACTERS ? `${line.slice(0, TITLE_MAX_CHARACTERS - 1)}…` : line;
};

// Files

/** Return the text of a file with conversations, each of `{ conversation, messages }`. */
const exported = (all) => JSON.stringify({
  format: FORMAT, version: FORMAT_VERSION,
  conversations: all.map(({ conversation: { id: _, ...fields }, messages }) => ({
    ...fields, messages: messages.map(({ conversation: __, ...message }) => message),
  })),
}, null, 1);

/**
 * Read a file with conversations, also of version 1, which had one list of messages.
 *
 * Throws an Error that says why the file cannot be read. Everything has a new id, so that nothing here is overwritten.
 */
function imported(text) {
  let file;
  try { file = JSON.parse(text); } catch { throw new Error("it is not JSON"); }
  if (file?.format === "levserve-conversation" && file.version === 1) file = { format: FORMAT, version: 2, conversations: [ofVersion1(file)] };
  if (file?.format !== FORMAT) throw new Error("it is not an exported conversation");
  if (file.version !== FORMAT_VERSION) throw new Error(`a newer version of this page has written it (${file.version})`);
  if (!Array.isArray(file.conversations)) throw new Error("its conversations are damaged");
  return file.conversations.map(importedConversation);
}

const ofVersion1 = ({ model, system, schema, options, messages }) => ({
  model, options: { ...options, system, schema },
  messages: Array.isArray(messages) ? messages.map((message, index) => ({ ...message, id: index, parent: index - 1 })) : null,
  leaf: messages?.length - 1,
});

function importedConversation({ title, created, updated, model, options, leaf, messages }) {
  const isMessage = (message) => ["user", "assistant"].includes(message?.role) && typeof message.content === "string";
  if (!Array.isArray(messages) || !messages.every(isMessage)) throw new Error("its messages are damaged");
  const id = newId(), ids = new Map(), now = Date.now();
  // A parent comes before its children, so that no way through the tree is without end.
  const imported = messages.map(({ id: old, parent, role, content, images, files, model: by, thinking, facts, error }) => {
    const message = { id: newId(), conversation: id, parent: ids.get(parent) ?? null, role, content };
    ids.set(old, message.id);
    const texts = Object.entries({ model: by, thinking, error }).filter(([, value]) => typeof value === "string");
    const shown = Array.isArray(images) ? images.filter((url) => typeof url === "string" && url.startsWith("data:image/")) : [];
    const read = Array.isArray(files) ? files.filter((file) => [file?.name, file?.text].every((value) => typeof value === "string")) : [];
    const attached = { ...(shown.length ? { images: shown } : {}), ...(read.length ? { files: read.map(({ name, text: of }) => ({ name, text: of })) } : {}) };
    return { ...message, ...Object.fromEntries(texts), ...attached, ...(facts ? { facts: importedFacts(facts) } : {}) };
  });
  const isTime = (moment) => Number.isFinite(moment) && moment > 0 && moment <= now;
  return {
    conversation: {
      id, title: titleOf(String(title ?? messages[0]?.content ?? "")) || "Imported", model: String(model ?? ""),
      created: isTime(created) ? created : now, updated: isTime(updated) ? updated : now,
      options: Object.fromEntries(Object.entries(options ?? {}).map(([name, value]) => [name, String(value ?? "")])),
      leaf: ids.get(leaf) ?? imported.at(-1)?.id ?? null,
    },
    messages: imported,
  };
}

const importedFacts = ({ reason, ...counts }) => ({
  ...Object.fromEntries(["tokens", "prompt", "rate", "first"].filter((name) => Number.isFinite(counts[name])).map((name) => [name, counts[name]])),
  ...(typeof reason === "string" ? { reason } : {}),
});
