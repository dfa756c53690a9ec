"use strict";
// Search in conversations: which have all words that are wanted, in their titles and their messages.

const EXCERPT_BEFORE = 30, EXCERPT_AFTER = 90; // characters around the first word

/** Return a text as it is searched: without case, accents or vowel signs. */
const folded = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replaceAll("ς", "σ");

const wordsOf = (wanted) => folded(wanted).split(/\s+/).filter(Boolean);

/** Collects what has the words of a search. */
class Search {
  #words;
  #found = new Map(); // by conversation: the words that its messages have, and the first message that has one

  constructor(wanted) { this.#words = wordsOf(wanted); }

  /** Look at a message. */
  read({ id, conversation, content, files }) {
    const whole = withFiles(content, files), text = folded(whole), words = this.#words.filter((word) => text.includes(word));
    if (!words.length) return;
    const before = this.#found.get(conversation) ?? { words: new Set(), message: id, excerpt: excerptOf(whole, words[0]) };
    for (const word of words) before.words.add(word);
    this.#found.set(conversation, before);
  }

  /** Return what of a conversation matches: `{ message, excerpt }`, empty if its title does alone; null if not all words are there. */
  match({ id, title }) {
    const name = folded(titleShown(title)), found = this.#found.get(id);
    if (this.#words.every((word) => name.includes(word))) return {};
    return this.#words.every((word) => name.includes(word) || found?.words.has(word)) ? found ?? {} : null;
  }
}

/** Return the text around the first place of a folded word: before it, the word as it was written, and behind it. */
function excerptOf(text, word) {
  let all = "";
  const places = []; // of each folded character, that in the text
  let place = 0;
  for (const letter of text) {
    const plain = folded(letter);
    all += plain;
    for (let i = 0; i < plain.length; i += 1) places.push(place);
    place += letter.length;
  }
  const at = Math.max(0, all.indexOf(word)), start = places[at] ?? 0, end = places[at + word.length] ?? text.length;
  const from = Math.max(0, start - EXCERPT_BEFORE), to = end + EXCERPT_AFTER, plain = (part) => part.replace(/\s+/g, " ");
  return [(from ? "…" : "") + plain(text.slice(from, start)), text.slice(start, end), plain(text.slice(end, to)) + (to < text.length ? "…" : "")];
}
