"use strict";
// The service as the chat sees it: whether it is ready, asks for a key, and which models it has.

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
  at("welcome-model").textContent = id;
  showTitle();
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

at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey(at("key").value.trim());
  at("key").value = "";
  try { if (await open()) showState("ready", state.models.length < 2 ? state.model : ""); } catch (error) { at("key-hint").textContent = error.message; }
});
at("forget-key").addEventListener("click", () => { setKey(null); isOpen = false; askForKey(); });
at("model").addEventListener("change", () => {
  chooseModel(at("model").value);
  kept("localStorage", "levserve.model", state.model);
});
