"use strict";
// Requests to the service: the body of a chat, the events of its answer, and the same request as a command or a program.

const CHAT_ROUTE = "v1/chat/completions";
const NOT_IN_OPENAI = new Set(["top_k", "min_p", "repetition_penalty", "add_generation_prompt", "continue_final_message"]); // its client sends them in `extra_body`

/** Return the content of a message: its text and that of its files, or parts if it has images. */
const contentOf = ({ content, images = [], files = [] }) => {
  const text = withFiles(content, files);
  return images.length === 0 ? text : [...images.map((url) => ({ type: "image_url", image_url: { url } })), ...(text ? [{ type: "text", text }] : [])];
};

/** Return the body of a request. `fields` are those of the options, `system` may be empty; the last message may be an answer to go on with. */
const chatBody = (model, system, messages, fields) => ({
  model,
  messages: [...(system ? [{ role: "system", content: system }] : []), ...messages.map((message) => ({ role: message.role, content: contentOf(message) }))],
  ...fields,
  ...(messages.at(-1)?.role === "assistant" ? { add_generation_prompt: false, continue_final_message: true } : {}),
});

/** Yield the events of an answer as they arrive. Throws an Error if the stream ends before its last event. */
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

function curlOf(body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${new URL(CHAT_ROUTE, location.href)} \\\n  -H 'Content-Type: application/json' \\\n`
    + (key ? `  -H "Authorization: Bearer $API_KEY" \\\n` : "") + `  -d '${json}'`;
}

function pythonOf(body) {
  const fields = Object.entries(body), extra = fields.filter(([name]) => NOT_IN_OPENAI.has(name));
  const known = [...fields.filter(([name]) => !NOT_IN_OPENAI.has(name)), ...(extra.length ? [["extra_body", Object.fromEntries(extra)]] : [])];
  const lines = [...known, ["stream", true]].map(([name, value]) => `    ${name}=${pythonLiteral(value, "    ")},\n`);
  return `${key ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${new URL("v1", location.href)}", `
    + `api_key=${key ? 'os.environ["API_KEY"]' : '"none"'})\nstream = client.chat.completions.create(\n${lines.join("")})\n`
    + `for chunk in stream:\n    print(chunk.choices[0].delta.content or "", end="", flush=True)\nprint()`;
}
