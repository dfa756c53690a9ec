// The AI SDK with its provider for compatible services, through every scenario; prints what it got as one line of JSON.
import { once } from "node:events";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool as toolOf } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const { baseURL, apiKey, model: name, question: prompt, tool, arrived } = JSON.parse(process.argv[2]);
const provider = (key) =>
  createOpenAICompatible({ name: "levserve", baseURL, apiKey: key, includeUsage: true, supportsStructuredOutputs: true });
const model = provider(apiKey)(name);
const Place = z.object({ kind: z.enum(["city", "village"]), population: z.union([z.literal(1), z.literal(100)]) });

async function chat() {
  const { text, finishReason, usage } = await generateText({ model, prompt, temperature: 0, maxRetries: 0 });
  return { text, reason: finishReason, tokens: usage.outputTokens };
}

async function stream() {
  const pieces = [];
  for await (const piece of streamText({ model, prompt, temperature: 0, maxRetries: 0 }).textStream) pieces.push(piece);
  return { pieces };
}

async function tools() {
  const { name: called, parameters } = tool.function;
  const seen = [];
  const execute = async (input) => {
    seen.push(input);
    return JSON.parse(arrived);
  };
  const answer = streamText({
    model,
    prompt,
    maxRetries: 0,
    maxOutputTokens: 200,
    tools: { [called]: toolOf({ inputSchema: jsonSchema(parameters), execute }) },
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  });
  const [first] = (await answer.steps)[0].toolCalls;
  return { name: first.toolName, arguments: seen[0], text: await answer.text };
}

async function structured() {
  return (await generateText({ model, prompt, maxRetries: 0, output: Output.object({ schema: Place }) })).output;
}

async function abort() {
  const controller = new AbortController();
  const providerOptions = { levserve: { ignore_eos: true } };
  const running = streamText({ model, prompt, abortSignal: controller.signal, maxRetries: 0, providerOptions });
  let numPieces = 0;
  for await (const _ of running.textStream) {
    if (++numPieces === 3) break;
  }
  controller.abort();
  console.log("aborted");
  await once(process.stdin, "data");
  return { numPieces };
}

async function errors() {
  const found = {};
  for (const [field, key, changes] of [
    ["key", "wrong", {}],
    ["model", apiKey, { model: "other" }],
    ["field", apiKey, { temperature: 9 }],
  ]) {
    const { model: asked = name, ...options } = changes;
    await generateText({ model: provider(key)(asked), prompt, maxRetries: 0, ...options }).catch((error) => {
      const { param } = JSON.parse(error.responseBody).error;
      found[field] = { kind: error.name, status: error.statusCode, param };
    });
  }
  return found;
}

const results = {};
for (const scenario of [chat, stream, tools, structured, abort, errors]) {
  results[scenario.name] = await scenario().catch((error) => ({ failure: `${error.stack}` }));
}
console.log(JSON.stringify(results));
process.exit(0);
