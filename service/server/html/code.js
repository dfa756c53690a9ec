"use strict";
// The request that would be sent now, as code to copy.

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
