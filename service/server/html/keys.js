"use strict";
// What a key means where text is written: whether it belongs to an input method, and whether Enter sends.

/**
 * Return whether a key belongs to the input method that composes a text, such as the Enter that takes a word over.
 *
 * Safari ends the composition before it tells of that key, which then has the code of a key that was processed.
 * Source: UI Events, "How to determine keyCode for keydown and keyup events".
 */
const isComposed = (event) => event.isComposing || event.keyCode === 229;

const isPhone = matchMedia("(pointer: coarse)"); // its keyboard has no Shift + Enter

/** Return whether a key sends what is written. On a phone Enter begins a new line, and a button sends. */
const sends = (event) => event.key === "Enter" && !isComposed(event)
  && (event.ctrlKey || event.metaKey || !(event.shiftKey || event.altKey || isPhone.matches));

// No browser has a command of its own under these keys. Typed by `code`: with Alt, a Mac's key writes another letter.
const isNewChat = (event) => event.code === "KeyN" && event.altKey && event.shiftKey && !event.ctrlKey && !event.metaKey
  && !event.getModifierState("AltGraph");
