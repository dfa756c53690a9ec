"use strict";
// The form for the API key and the choice of a model, for pages whose `show(models)` takes all models of the service.

const can = (model, what) => model.capabilities?.includes(what) ?? false;

/** Offer the models that can do one of some things, or say that there is none; return those offered. */
function offer(all, things, promise, none) {
  // What a model can do is known once it was loaded.
  const models = all.filter((model) => !model.capabilities || things.some((what) => can(model, what)));
  models.sort((a, b) => Boolean(b.capabilities) - Boolean(a.capabilities));
  at("chat").hidden = !all.some((model) => !model.capabilities || can(model, "completions"));
  at("work").hidden = !models.length;
  at("lead").textContent = models.length ? promise : none;
  at("model").replaceChildren(...models.map(({ id }) => make("option", { value: id, textContent: id })));
  at("choice").hidden = models.length === 1;
  if (models.length) document.title = `${models[0].id} · Levserve`;
  return models;
}

async function open() {
  let response, body;
  try {
    response = await fetch("v1/models", { headers: headers() });
    body = await response.json();
  } catch {
    at("lead").textContent = "The service is not reachable. Trying again …";
    setTimeout(open, 2000);
    return;
  }
  at("key-form").hidden = response.status !== 401;
  at("work").hidden = !response.ok;
  if (response.ok) show(body.data);
  else at("lead").textContent = response.status === 401 && !key ? "This service asks for a key. It stays in this tab and is sent to this service alone." : body.error.message;
  if (response.status === 503) setTimeout(open, 1000);
}

at("key-form").replaceChildren(
  make("div", {}, make("label", { htmlFor: "key", textContent: "API key" }),
    make("input", { id: "key", type: "password", autocomplete: "off", spellcheck: false, required: true })),
  make("button", { type: "submit", textContent: "Continue" }));
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(at("key").value.trim());
  open();
});
