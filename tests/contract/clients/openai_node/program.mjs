// The official client for Node, through every scenario; prints what it got as one line of JSON.
import { once } from "node:events";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { baseURL, apiKey, model, question, tool, arrived } = JSON.parse(process.argv[2]);
const clientOf = (key) => new OpenAI({ baseURL, apiKey: key, maxRetries: 0 });
const { completions } = clientOf(apiKey).chat;
const messages = [{ role: "user", content: question }];
const Place = z.object({ kind: z.enum(["city", "village"]), population: z.union([z.literal(1), z.literal(100)]) });

async function chat() {
  const { choices, usage } = await completions.create({ model, messages, temperature: 0 });
  return { text: choices[0].message.content, reason: choices[0].finish_reason, tokens: usage.completion_tokens };
}

async function stream() {
  const pieces = [];
  for await (const chunk of await completions.create({ model, messages, temperature: 0, stream: true })) {
    pieces.push(chunk.choices[0].delta.content ?? "");
  }
  return { pieces };
}

async function tools() {
  const options = { model, tools: [tool], max_tokens: 200 };
  const first = await completions
    .stream({ ...options, messages, tool_choice: "required", parallel_tool_calls: false })
    .finalChatCompletion();
  const { message } = first.choices[0];
  const [call] = message.tool_calls;
  const result = { role: "tool", tool_call_id: call.id, content: arrived };
  const second = await completions.create({ ...options, messages: [...messages, message, result], tool_choice: "none" });
  const { name, arguments: stated } = call.function;
  return { name, arguments: JSON.parse(stated), text: second.choices[0].message.content };
}

async function structured() {
  const answer = await completions.parse({ model, messages, response_format: zodResponseFormat(Place, "place") });
  return answer.choices[0].message.parsed;
}

async function abort() {
  const running = await completions.create({ model, messages, stream: true, ignore_eos: true });
  let numPieces = 0;
  for await (const _ of running) {
    if (++numPieces === 3) break;
  }
  console.log("aborted");
  await once(process.stdin, "data");
  return { numPieces };
}

async function errors() {
  const found = {};
  for (const [name, key, changes] of [
    ["key", "wrong", {}],
    ["model", apiKey, { model: "other" }],
    ["field", apiKey, { temperature: 9 }],
  ]) {
    await clientOf(key)
      .chat.completions.create({ model, messages, ...changes })
      .catch((error) => (found[name] = { kind: error.constructor.name, status: error.status, param: error.param }));
  }
  return found;
}

const results = {};
for (const scenario of [chat, stream, tools, structured, abort, errors]) {
  results[scenario.name] = await scenario().catch((error) => ({ failure: `${error.stack}` }));
}
console.log(JSON.stringify(results));
process.exit(0);
