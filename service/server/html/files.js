"use strict";
// Files whose text goes with the next message: plain texts as the browser reads them, PDFs as the service does.

const MAX_FILE_CHARACTERS = 1_000_000;
const MAX_TEXT_FILE_BYTES = 4_000_000;
const PDF_ROUTE = "extract_text";
const PDF_MAGIC_BYTES = 1024; // within which a PDF says that it is one
const UNREADABLE = "is neither text nor a PDF";

const isPicture = ({ type }) => type.startsWith("image/") && type !== "image/svg+xml"; // an SVG is a text

/** Return the text of a file. Throws an Error that says why it has none. */
async function textOf(file) {
  const head = latin1(await file.slice(0, PDF_MAGIC_BYTES).arrayBuffer());
  const text = head.includes("%PDF-") ? await textOfPdf(file) : await plainTextOf(file);
  if (!text.trim()) throw new Error("has no text");
  if (text.length > MAX_FILE_CHARACTERS) throw new Error(`has more than ${MAX_FILE_CHARACTERS.toLocaleString("en")} characters`);
  return text;
}

const latin1 = (bytes) => new TextDecoder("latin1").decode(bytes);

async function plainTextOf(file) {
  if (file.size > MAX_TEXT_FILE_BYTES) throw new Error(`is larger than ${bytes(MAX_TEXT_FILE_BYTES)}`);
  const content = new Uint8Array(await file.arrayBuffer()), [one, two] = content;
  const utf16 = one === 0xff && two === 0xfe ? "utf-16le" : one === 0xfe && two === 0xff ? "utf-16be" : null;
  if (utf16) return new TextDecoder(utf16).decode(content);
  if (content.includes(0)) throw new Error(UNREADABLE);
  // What is not UTF-8 is as old programs of Windows wrote it.
  try { return new TextDecoder("utf-8", { fatal: true }).decode(content); } catch { return ofWindows(content); }
}

function ofWindows(content) {
  const text = new TextDecoder("windows-1252").decode(content);
  if (/[\x01-\x08\x0e-\x1a\x1c-\x1f]/.test(text)) throw new Error(UNREADABLE);
  return text;
}

async function textOfPdf(file) {
  const form = new FormData();
  form.append("file", file, file.name);
  const { "Content-Type": _, ...own } = headers(); // the browser writes that of a form
  const response = await fetch(PDF_ROUTE, { method: "POST", headers: own, body: form });
  if (!response.ok) throw await failure(response);
  return (await response.json()).text;
}

/** Return the text of a message as it is sent: that of its files, and what was written. */
const withFiles = (content, files = []) => [...files.map(({ name, text }) => `--- File: ${name} ---\n${text}`), content].filter(Boolean).join("\n\n");

/** Return the files of a message as elements that open. */
const fileElements = ({ files = [] }) => files.map(({ name, text }) => make("details", { className: "file" },
  make("summary", {}, make("bdi", { textContent: name })), make("pre", { textContent: text, tabIndex: 0, dir: "auto" })));

/** Show the files of the next message; one without its text is still being read. `remove(file)` is called when its button is pressed. */
function renderFiles(box, files, remove) {
  box.hidden = files.length === 0;
  box.replaceChildren(...files.map((file) => make("li", {}, make("bdi", { textContent: file.name }),
    make("span", { textContent: file.text === null ? "is being read …" : `${file.text.length.toLocaleString("en")} characters` }),
    button("×", () => remove(file), { ariaLabel: `Remove ${file.name}` }))));
}
