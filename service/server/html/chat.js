"use strict";
const announce = (text) => { at("announcer").textContent = text; };
const CONVERSATION = "levserve.conversation";

// The sampling options: name in the request, label, and bounds of the input.
const SAMPLING = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.01 }],
  ["top_k", "Top k", { min: -1, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }],
  ["seed", "Seed", { step: 1 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }],
  ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 10, step: 0.01 }],
];
const EXTENSIONS = new Set(["top_k", "min_p", "repetition_penalty"]);
const PROMPTS = ["What can you do?", "Tell me a short story.", "Explain how a language model writes, in three sentences."];

const state = { model: "", messages: [], running: null, tab: "curl" };

// Requests

const schema = () => {
  const text = at("schema").value.trim();
  if (!text) return null;
  const parsed = JSON.parse(text);
  if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) throw new SyntaxError("it must be an object");
  return parsed;
};

const requestBody = (extra = []) => {
  const system = at("system").value;
  const sent = state.messages.map(({ role, content }) => ({ role, content }));
  const body = { model: state.model, messages: [...(system ? [{ role: "system", content: system }] : []), ...sent, ...extra] };
  for (const [name] of SAMPLING) {
    const input = at(name);
    if (input.value !== "" && input.validity.valid) body[name] = Number(input.value);
  }
  const stop = at("stop-strings").value;
  if (stop) body.stop = stop;
  let wanted = null;
  try { wanted = schema(); } catch { /* shown beside the box; sending is refused */ }
  if (wanted) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: wanted, strict: true } };
  return body;
};

async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let text = "", isComplete = false;
  for (;;) {
    const { done, value } = await reader.read();
    text += decoder.decode(value, { stream: !done });
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      if (frame === "data: [DONE]") isComplete = true;
      else if (frame.startsWith("data: ")) yield JSON.parse(frame.slice(6));
    }
    if (done && isComplete) return;
    if (done) throw new Error("The connection closed before the answer was complete.");
  }
}

const failure = async (response) => {
  const body = await response.json().catch(() => null);
  const error = new Error(body?.error?.message ?? `The service answered ${response.status}.`);
  error.status = response.status;
  return error;
};

async function answer() {
  const body = requestBody(), controller = new AbortController(), began = performance.now();
  const message = { role: "assistant", content: "", thinking: "", facts: {} };
  const item = messageItem(message);
  const shown = at("messages").appendChild(item);
  state.running = controller;
  item.setAttribute("aria-busy", "true");
  showRunning();
  stick();
  let first = 0, last = 0, frame = 0;
  const paint = () => { frame = 0; renderText(item, message); renderFacts(item, message); stick(); };
  const usage = (counts) => {
    const tokens = counts.completion_tokens;
    message.facts.tokens = tokens;
    message.facts.prompt = counts.prompt_tokens;
    if (tokens > 1 && last > first) message.facts.rate = (tokens - 1) / ((last - first) / 1000);
  };
  try {
    const options = { include_usage: true, continuous_usage_stats: true };
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), signal: controller.signal,
      body: JSON.stringify({ ...body, stream: true, stream_options: options }),
    });
    if (!response.ok) throw await failure(response);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const [choice] = event.choices;
      const part = choice?.delta?.content ?? "", thought = choice?.delta?.reasoning_content ?? "";
      if (part || thought) {
        last = performance.now();
        if (!first) { first = last; message.facts.first = (first - began) / 1000; }
        message.content += part;
        message.thinking += thought;
      }
      if (event.usage) usage(event.usage);
      if (choice?.finish_reason) message.facts.reason = choice.finish_reason;
      frame ||= requestAnimationFrame(paint);
    }
    announce(`Answer complete. ${message.content.slice(0, 400)}`);
  } catch (error) {
    if (error.name === "AbortError") { message.facts.reason = "stopped"; announce("Stopped."); }
    else { message.error = error.message; if (error.status === 401) askForKey(error.message); }
  } finally {
    cancelAnimationFrame(frame);
    state.running = null;
    item.removeAttribute("aria-busy");
    // Without a token there is no message to send back with the next request.
    if (message.content || message.thinking) state.messages.push(message);
    else if (!message.error) shown.remove();
    paint();
    showRunning();
    save();
  }
}

function send(text) {
  if (state.running || !text.trim() || !check()) return;
  state.messages = state.messages.filter((message) => message.content);
  const message = { role: "user", content: text };
  state.messages.push(message);
  renderMessages();
  at("draft").value = "";
  fit();
  follows = true;
  answer();
}

function again() {
  if (state.running || !check()) return;
  while (state.messages.at(-1)?.role === "assistant") state.messages.pop();
  if (!state.messages.length) return;
  renderMessages();
  answer();
}

// Messages

function messageItem(message) {
  const isUser = message.role === "user";
  const name = isUser ? "You" : state.model || "Model";
  const item = make("li", { className: message.role }, make("h2", { textContent: name }), make("div", { className: "text" }));
  renderText(item, message);
  if (!isUser) item.append(make("div", { className: "facts" }));
  return item;
}

function renderText(item, message) {
  const box = item.querySelector(".text");
  if (message.thinking) {
    const thinking = item.querySelector(".thinking") ?? box.before(make("details", { className: "thinking" },
      make("summary", { textContent: "Thinking" }), make("p"))) ?? item.querySelector(".thinking");
    thinking.querySelector("p").textContent = message.thinking;
  }
  if (message.role === "user") box.textContent = message.content;
  else renderMarkdown(box, message.content, !item.hasAttribute("aria-busy"));
  item.querySelector(".error")?.remove();
  if (message.error) box.after(make("p", { className: "error", role: "alert", textContent: message.error }));
}

const REASONS = { stop: "", length: "reached the limit on tokens", stopped: "stopped by you", tool_calls: "asks for a tool" };
function renderFacts(item, message) {
  const { tokens, rate, first, reason } = message.facts ?? {};
  const texts = [
    tokens === undefined ? "" : `${tokens} ${tokens === 1 ? "token" : "tokens"}`,
    rate ? `${rate.toFixed(1)} tokens/s` : "",
    first === undefined ? "" : `${first.toFixed(2)} s to the first`,
    REASONS[reason] ?? reason ?? "",
  ];
  const parts = texts.filter(Boolean).map((text) => make("span", { textContent: text }));
  if (!item.hasAttribute("aria-busy")) {
    if (message.content) {
      parts.push(make("button", { className: "plain", type: "button", textContent: "Copy", onclick: (event) => copy(message.content, event.target) }));
    }
    if (item === at("messages").lastElementChild) {
      parts.push(make("button", { className: "plain", type: "button", textContent: "Try again", onclick: again }));
    }
  }
  item.querySelector(".facts").replaceChildren(...parts);
}

function renderMessages() {
  at("messages").replaceChildren(...state.messages.map(messageItem));
  [...at("messages").children].forEach((item, index) => {
    if (state.messages[index].role === "assistant") renderFacts(item, state.messages[index]);
  });
  at("welcome").hidden = !state.model || state.messages.length > 0;
  renderCode();
}

function showRunning() {
  const isRunning = state.running !== null, hadFocus = document.activeElement;
  at("send").hidden = isRunning;
  at("stop").hidden = !isRunning;
  if (!isRunning && hadFocus === at("stop")) at("draft").focus();
  renderCode();
}

// Follow the text unless the reader has scrolled up. What grows after a scroll is followed before its event is handled,
// which would take the growth for a reader's scroll.
let follows = true;
at("scroll").addEventListener("scroll", () => {
  const box = at("scroll");
  follows = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
});
const stick = () => { if (follows) at("scroll").scrollTop = at("scroll").scrollHeight; };

// The request as a command and as a program

const pythonLiteral = (value, indent = "") => {
  const deeper = `${indent}    `;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const items = isList ? value.map((item) => pythonLiteral(item, deeper))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonLiteral(item, deeper)}`);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  const flat = `${open}${items.join(", ")}${close}`;
  if (flat.length < 64 && !flat.includes("\n")) return flat;
  return `${open}\n${items.map((item) => `${deeper}${item},\n`).join("")}${indent}${close}`;
};

function codeOf(kind) {
  const draft = at("draft").value.trim(), last = state.messages.at(-1);
  const asked = draft || last?.role !== "user" ? [{ role: "user", content: draft || "Hello" }] : [];
  const body = requestBody(state.running ? [] : asked), base = location.origin + location.pathname.replace(/\/[^/]*$/, "");
  const needsKey = key !== null;
  if (kind === "curl") {
    const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
    return `curl ${base}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n`
      + (needsKey ? `  -H "Authorization: Bearer $API_KEY" \\\n` : "") + `  -d '${json}'`;
  }
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTENSIONS.has(name)));
  const known = Object.entries(body).filter(([name]) => !EXTENSIONS.has(name));
  if (Object.keys(extra).length) known.push(["extra_body", extra]);
  const lines = [...known, ["stream", true]].map(([name, value]) => `    ${name}=${pythonLiteral(value, "    ")},\n`);
  return `${needsKey ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", `
    + `api_key=${needsKey ? 'os.environ["API_KEY"]' : '"none"'})\nstream = client.chat.completions.create(\n${lines.join("")})\n`
    + `for chunk in stream:\n    print(chunk.choices[0].delta.content or "", end="", flush=True)\nprint()`;
}
const renderCode = () => { if (!at("options").hidden) at("code").textContent = codeOf(state.tab); };

async function copy(text, button) {
  const label = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; announce("Copied."); }
  catch { button.textContent = "The browser refused"; }
  setTimeout(() => { button.textContent = label; }, 1500);
}

// Options

for (const [name, label, bounds] of SAMPLING) {
  const input = make("input", { id: name, type: "number", inputMode: "decimal", placeholder: "default", ...bounds });
  at("sampling").append(make("label", {}, label, input));
}
at("sampling").append(make("label", {}, "Stop at", make("input", { id: "stop-strings", type: "text", placeholder: "none", autocomplete: "off" })));

function check() {
  let problem = "";
  try { schema(); } catch (error) { problem = `This is not a JSON schema: ${error.message}`; }
  at("schema").setAttribute("aria-invalid", String(Boolean(problem)));
  at("schema-hint").textContent = problem || "The answer will be JSON that follows it.";
  at("schema-hint").classList.toggle("wrong", Boolean(problem));
  const wrong = SAMPLING.map(([name]) => at(name)).filter((input) => !input.validity.valid);
  for (const [name] of SAMPLING) at(name).setAttribute("aria-invalid", String(!at(name).validity.valid));
  if (!problem && !wrong.length) return true;
  showOptions(true);
  (wrong[0] ?? at("schema")).focus();
  announce(problem || wrong[0].validationMessage);
  return false;
}

const isWide = matchMedia("(min-width: 60.0625rem)");
function showOptions(isShown) {
  at("options").hidden = !isShown;
  at("options-toggle").setAttribute("aria-expanded", String(isShown));
  document.querySelector("main").inert = document.querySelector("header").inert = isShown && !isWide.matches;
  renderCode();
  if (isShown && !isWide.matches) at("options-close").focus();
}
function hideOptions() { showOptions(false); at("options-toggle").focus(); }

// Files

const document_ = () => ({
  format: "levserve-conversation", version: 1, model: state.model, system: at("system").value, schema: at("schema").value,
  options: Object.fromEntries([...SAMPLING.map(([name]) => name), "stop-strings"].map((name) => [name, at(name).value])),
  messages: state.messages.map(({ role, content, thinking, facts }) => ({ role, content, ...(thinking ? { thinking } : {}), ...(facts ? { facts } : {}) })),
});
function restore(file) {
  const isMessage = (message) => ["user", "assistant"].includes(message?.role) && typeof message.content === "string";
  if (file?.format !== "levserve-conversation" || file.version !== 1) throw new Error("it is no exported conversation");
  if (!Array.isArray(file.messages) || !file.messages.every(isMessage)) throw new Error("its messages are damaged");
  state.messages = file.messages.map(({ role, content, thinking, facts }) => ({
    role, content, thinking: String(thinking ?? ""), facts: facts && typeof facts === "object" ? facts : {},
  }));
  at("system").value = String(file.system ?? "");
  at("schema").value = String(file.schema ?? "");
  for (const name of [...SAMPLING.map(([name]) => name), "stop-strings"]) at(name).value = String(file.options?.[name] ?? "");
  renderMessages();
}
const save = () => kept("sessionStorage", CONVERSATION, JSON.stringify(document_()));

// The start of the service

const PHASES = [["import", "Process"], ["locate", "Checkpoint"], ["weights", "Weights"], ["tokenizer", "Tokenizer"], ["executables", "Executables"], ["warm", "First token"]];
const bytes = (count) => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; unit += 1; }
  return `${count.toFixed(unit ? 1 : 0)} ${units[unit]}`;
};
const seconds = (count) => count < 90 ? `${count < 10 ? count.toFixed(1) : Math.round(count)} s` : `${Math.round(count / 60)} min`;

function showStart(progress) {
  const { percent, estimated_seconds_left: left } = progress;
  const running = Object.fromEntries(Object.entries(progress.phases_running_seconds ?? {}).map(([name, age]) => [name.split(" ")[0], age]));
  const done = progress.phases_done_seconds ?? {};
  if (percent === null || percent === undefined) at("bar").removeAttribute("value"); else at("bar").value = percent;
  at("left-percent").textContent = percent === null || percent === undefined ? "" : `${percent} %`;
  at("left-time").textContent = left ? `complete in about ${seconds(left)}` : `${seconds(progress.seconds ?? 0)} so far`;
  const detail = {
    weights: progress.bytes_total ? `${bytes(progress.bytes_done)} of ${bytes(progress.bytes_total)}` : "",
    executables: progress.executables_total ? `${progress.executables_done} of ${progress.executables_total}` : "",
  };
  at("phases").replaceChildren(...PHASES.map(([phase, label]) => {
    const isWaiting = phase === "executables" && progress.executables_done < progress.executables_total;
    const isRunning = phase in running || isWaiting, isDone = !isRunning && phase in done;
    const item = make("li", {}, make("span", { textContent: isDone ? "✓" : isRunning ? "→" : "" , ariaHidden: "true" }),
      make("span", { textContent: label }), make("span", { textContent: detail[phase] ?? "" }),
      make("span", { textContent: phase in running ? seconds(running[phase]) : isDone ? seconds(done[phase]) : "" }));
    item.dataset.state = isRunning ? "running" : isDone ? "done" : "waiting";
    item.append(make("span", { className: "out-of-sight", textContent: item.dataset.state }));
    return item;
  }));
}

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

let isOpen = false;
async function open() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.status === 401) { askForKey((await failure(response)).message); return false; }
  if (!response.ok) throw await failure(response);
  const models = (await response.json()).data;
  const model = models.find(({ capabilities }) => capabilities?.includes("completions")) ?? models.find(({ capabilities }) => !capabilities);
  // What a model can do is known once it was loaded.
  at("vectors").hidden = models.every(({ capabilities }) => capabilities?.includes("completions"));
  if (!model) { location.replace("vectors"); return false; }
  state.model = model.id;
  document.title = `${model.id} · Levserve`;
  at("welcome-model").textContent = model.id;
  at("ask-key").hidden = at("start").hidden = true;
  at("composer").hidden = false;
  at("forget-key").hidden = key === null;
  if (!isOpen && document.activeElement === document.body) at("draft").focus({ preventScroll: true });
  isOpen = true;
  announce("The model is ready.");
  renderMessages();
  return true;
}

async function watch() {
  let wait = 500;
  try {
    const response = await fetch("health/ready"), progress = await response.json();
    if (response.ok) {
      if (at("ask-key").hidden && (isOpen || await open())) {
        const missing = progress.executables_total - progress.executables_done;
        const text = progress.status === "answering" && missing > 0 ? `${state.model}, ${missing} executables still compiling` : state.model;
        showState("ready", text);
      }
      wait = progress.status === "answering" ? 2000 : 15000;
    } else if (progress.status === "starting" || progress.status === "answering") {
      isOpen = false;
      at("start").hidden = state.messages.length > 0;
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

// Wiring

at("form").addEventListener("submit", (event) => { event.preventDefault(); send(at("draft").value); });
at("draft").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(at("draft").value); }
});
const fit = () => {
  const draft = at("draft");
  if (CSS.supports("field-sizing", "content")) return;
  draft.style.height = "auto";
  draft.style.height = `${draft.scrollHeight}px`;
};
at("draft").addEventListener("input", () => { fit(); renderCode(); });
at("stop").addEventListener("click", () => state.running?.abort());
at("new").addEventListener("click", () => {
  state.running?.abort();
  state.messages = [];
  kept("sessionStorage", CONVERSATION, null);
  renderMessages();
  at("draft").focus();
});
at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey(at("key").value.trim());
  at("key").value = "";
  try { if (await open()) showState("ready", state.model); } catch (error) { at("key-hint").textContent = error.message; }
});
at("forget-key").addEventListener("click", () => { setKey(null); isOpen = false; askForKey(); });
at("options-toggle").addEventListener("click", () => (at("options").hidden ? showOptions(true) : hideOptions()));
at("options-close").addEventListener("click", hideOptions);
at("options").addEventListener("input", renderCode);
at("schema").addEventListener("change", () => check());
isWide.addEventListener("change", () => showOptions(isWide.matches));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!at("options").hidden && !isWide.matches) hideOptions(); else state.running?.abort();
});
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
at("export").addEventListener("click", () => {
  const file = new Blob([JSON.stringify(document_(), null, 2)], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(file), download: `conversation-${new Date().toISOString().slice(0, 10)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
at("import").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  if (!file) return;
  state.running?.abort();
  try {
    restore(JSON.parse(await file.text()));
    at("file-hint").textContent = `${file.name} is open.`;
    save();
  } catch (error) { at("file-hint").textContent = `${file.name} cannot be opened: ${error.message}.`; }
  at("file").value = "";
});

const showTheme = () => { at("theme").textContent = `Theme: ${theme}`; };
at("theme").addEventListener("click", () => { setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]); showTheme(); });
showTheme();

for (const text of PROMPTS) at("prompts").append(make("li", {}, make("button", { type: "button", textContent: text, onclick: () => send(text) })));
try { const saved = kept("sessionStorage", CONVERSATION); if (saved) restore(JSON.parse(saved)); } catch { /* of another version */ }
if (isWide.matches) showOptions(true);
watch();
