"use strict";
// A text that the page has made, as a file for its reader.

/** Have the browser save a text under a name. */
function download(text, name, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
