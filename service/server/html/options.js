"use strict";
// Options of the answers: the system prompt, sampling, and the schema that an answer follows.

// Name in the request, label, and bounds of the input.
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
for (const [name, label, bounds] of SAMPLING) {
  at("sampling").append(make("label", {}, label, make("input", { id: name, type: "number", inputMode: "decimal", placeholder: "default", ...bounds })));
}
at("sampling").append(make("label", {}, "Stop at", make("input", { id: "stop-strings", type: "text", placeholder: "none", autocomplete: "off", dir: "auto" })));

const OPTIONS = [...SAMPLING.map(([name]) => name), "stop-strings", "system", "schema"];
const readOptions = () => Object.fromEntries(OPTIONS.map((name) => [name, at(name).value]).filter(([, value]) => value));
const showOptionsOf = (options) => { for (const name of OPTIONS) at(name).value = options[name] ?? ""; };

function schema() {
  const text = at("schema").value.trim();
  if (!text) return null;
  const parsed = JSON.parse(text);
  if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) throw new SyntaxError("it must be an object");
  return parsed;
}

/** Return the fields of a request that the options set; a wrong one, which `optionsProblem` tells, sets none. */
function optionFields() {
  const fields = {};
  for (const [name] of SAMPLING) {
    const input = at(name);
    if (input.value !== "" && input.validity.valid) fields[name] = Number(input.value);
  }
  if (at("stop-strings").value) fields.stop = at("stop-strings").value;
  let wanted = null;
  try { wanted = schema(); } catch { /* shown beside its box */ }
  if (wanted) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema: wanted, strict: true } };
  return fields;
}

/** Mark options that cannot be sent, and return the first as `{ input, text }`, or null. */
function optionsProblem() {
  let problem = "";
  try { schema(); } catch (error) { problem = `This is not a JSON schema: ${error.message}`; }
  at("schema").setAttribute("aria-invalid", String(Boolean(problem)));
  at("schema-hint").textContent = problem || "The answer will be JSON that follows it.";
  at("schema-hint").classList.toggle("wrong", Boolean(problem));
  for (const [name] of SAMPLING) at(name).setAttribute("aria-invalid", String(!at(name).validity.valid));
  const wrong = SAMPLING.map(([name]) => at(name)).find((input) => !input.validity.valid);
  if (wrong) return { input: wrong, text: wrong.validationMessage };
  return problem ? { input: at("schema"), text: problem } : null;
}
