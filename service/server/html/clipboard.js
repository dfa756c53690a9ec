"use strict";
// What a paste or a drop brings: files, or a text.

/**
 * Return the files that are meant, and none where a text is.
 *
 * Spreadsheets and word processors put a picture of a selection beside its text, and then the text is meant. A file
 * manager puts the names of files beside them as their text, and then the files are.
 */
function filesOf(transfer) {
  const files = [...(transfer?.files ?? [])];
  const lines = (transfer?.getData("text/plain") ?? "").split(/[\r\n]+/).map((line) => line.trim()).filter(Boolean);
  const isName = (line) => files.some(({ name }) => line === name || decoded(line).endsWith(`/${name}`) || line.endsWith(`\\${name}`));
  return lines.every(isName) ? files : [];
}

const decoded = (address) => { try { return decodeURIComponent(address); } catch { return address; } };

const bringsFiles = (transfer) => transfer?.types.includes("Files") ?? false;

/** Keep files that are dropped anywhere from replacing the page, and take them with `take(files)`, if a page has a use for them. */
function takeDropped(take = null) {
  const mark = (isOver) => document.documentElement.classList.toggle("is-over", isOver && take !== null);
  document.addEventListener("dragover", (event) => {
    if (!bringsFiles(event.dataTransfer)) return;
    event.preventDefault();
    mark(true);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); }); // it left the page
  document.addEventListener("drop", (event) => {
    if (!bringsFiles(event.dataTransfer)) return;
    event.preventDefault();
    mark(false);
    take?.([...event.dataTransfer.files]);
  });
}
