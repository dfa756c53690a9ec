"use strict";
// A recording, from a file or the microphone, as text and as subtitles.

const ROUTE = "audio/transcriptions";
// Whisper's languages; the service takes their codes, and their names in English.
const LANGUAGES = "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue".split(" ");

let recorder = null, hearing = null; // the microphone's, and what stops the request that is running
let heard = { name: "", text: "", segments: [] };

/** Return the request of a recording. */
function requestOf(content, name) {
  const form = new FormData(), language = at("language").value.trim(), prompt = at("prompt").value.trim();
  const fields = { model: at("model").value, stream: "true", response_format: "verbose_json", ...(language ? { language } : {}), ...(prompt ? { prompt } : {}) };
  for (const [field, value] of Object.entries(fields)) form.append(field, value);
  form.append("file", content, name);
  const { "Content-Type": _, ...own } = headers(); // the browser writes that of a form
  return { method: "POST", headers: own, body: form };
}

/** Send a recording, and show its text as it grows; what came before it is stopped stays. */
async function hear(content, name) {
  hearing = new AbortController();
  heard = { name: name.replace(/\.[^.]*$/, "") || "recording", text: "", segments: [] };
  at("facts").textContent = "";
  at("problem").hidden = true;
  showHeard();
  showRunning();
  const began = performance.now(), took = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
  try {
    const response = await fetch(`v1/${ROUTE}`, { ...requestOf(content, name), signal: hearing.signal });
    if (response.status === 401) open();
    if (!response.ok) throw await failure(response);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.type === "transcript.text.delta") heard.text += event.delta;
      if (event.type === "transcript.text.segment") heard.segments.push(event);
      if (event.type === "transcript.text.done") {
        heard.text = event.text;
        const seconds = event.usage.input_token_details.audio_tokens / 50;
        at("facts").textContent = `${seconds.toFixed(1)} s of sound in ${took()}${event.text ? "" : "; nothing was said"}`;
      }
      showHeard();
    }
  } catch (error) {
    if (error.name === "AbortError") at("facts").textContent = `stopped by you after ${took()}`; else complain(error.message);
  }
  hearing = null;
  showRunning();
}

function showHeard() {
  if (at("text").textContent !== heard.text) at("text").textContent = heard.text;
  at("results").hidden = !heard.text;
  at("srt").hidden = at("vtt").hidden = heard.segments.length === 0;
}

function showRunning() {
  const isRunning = hearing !== null, hadFocus = document.activeElement;
  at("send").disabled = isRunning || recorder !== null;
  at("record").disabled = isRunning;
  at("stop").hidden = !isRunning;
  if (isRunning && hadFocus === at("send")) at("stop").focus();
  if (!isRunning && hadFocus === at("stop")) at("send").focus();
}

function complain(message) {
  at("problem").textContent = message;
  at("problem").hidden = false;
}

/** Take a file that was dropped, and write it down unless another is being heard. */
function take([file, ...others]) {
  if (!file || at("work").hidden) return;
  const transfer = new DataTransfer();
  transfer.items.add(file);
  at("file").files = transfer.files;
  if (hearing || recorder) complain(`Another recording is being heard. “${file.name}” waits for “Write it down”.`);
  else hear(file, file.name).then(() => { if (others.length) complain(`One recording at a time: “${file.name}” alone was heard.`); });
}

/** Record from the microphone until the button is pressed again, and send what was recorded. */
async function record() {
  if (recorder) { recorder.stop(); return; }
  let stream;
  try { stream = await navigator.mediaDevices.getUserMedia({ audio: true }); }
  catch { complain("The browser gives no microphone: allow it for this page, or choose a file."); return; }
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  recorder.addEventListener("stop", () => {
    for (const track of stream.getTracks()) track.stop();
    const type = recorder.mimeType;
    recorder = null;
    at("record").textContent = "Record";
    hear(new Blob(parts, { type }), "recording");
  });
  recorder.start();
  at("problem").hidden = true;
  at("record").textContent = "Stop and write it down";
  showRunning();
}

async function copyHeard() {
  const label = at("copy").textContent;
  try { await copyText(heard.text); at("copy").textContent = "Copied"; } catch { at("copy").textContent = "The browser refused"; }
  setTimeout(() => { at("copy").textContent = label; }, 1500);
}

function show(all) {
  offer(all, [ROUTE], "Recordings go to a model of this service, and nowhere else.", "No model of this service hears.");
  at("record").hidden = !navigator.mediaDevices || typeof MediaRecorder === "undefined"; // browsers want TLS for it
}

const names = new Intl.DisplayNames("en", { type: "language" });
at("languages").append(...LANGUAGES.map((code) => make("option", { value: code, label: names.of(code === "jw" ? "jv" : code) })));
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const [file] = at("file").files;
  hear(file, file.name);
});
at("record").addEventListener("click", record);
at("stop").addEventListener("click", () => hearing?.abort());
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !isComposed(event)) hearing?.abort(); });
at("copy").addEventListener("click", copyHeard);
for (const [format, { type, write }] of Object.entries(SUBTITLES)) {
  at(format).addEventListener("click", () => download(write(heard.segments), `${heard.name}.${format}`, type));
}
takeDropped(take);
open();
