"use strict";
// Shared by all pages: elements, the browser's storage, the API key and the theme.

const at = (id) => document.getElementById(id);

/** Create an element with properties and children. */
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

const button = (label, onclick, properties = {}) => make("button", { className: "plain", type: "button", textContent: label, onclick, ...properties });

/** Read an entry of a storage, write it, or remove it if `value` is null; a browser may forbid storage. */
const kept = (storage, name, value) => {
  try {
    if (value === undefined) return window[storage].getItem(name);
    if (value === null) window[storage].removeItem(name); else window[storage].setItem(name, value);
  } catch { /* forbidden or full */ }
  return null;
};

/** Put a text into the clipboard. */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS, browsers have the old way alone.
  const box = document.body.appendChild(make("textarea", { value: text, className: "out-of-sight" })), before = document.activeElement;
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  before?.focus();
  if (!isCopied) throw new Error("refused");
}

/** Return the error that a response states. */
async function failure(response) {
  const body = await response.json().catch(() => null);
  return Object.assign(new Error(body?.error?.message ?? `The service answered ${response.status}.`), { status: response.status });
}

// The key stays in the tab, until it is closed.
let key = kept("sessionStorage", "levserve.key");
const setKey = (value) => { key = value; kept("sessionStorage", "levserve.key", value); };
const headers = () => ({ "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) });

const THEMES = ["auto", "light", "dark"];
let theme = "auto";
function setTheme(name) {
  theme = THEMES.includes(name) ? name : "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  kept("localStorage", "levserve.theme", theme === "auto" ? null : theme);
}
setTheme(kept("localStorage", "levserve.theme"));
