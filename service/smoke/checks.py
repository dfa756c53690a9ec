"""The checks that a service must pass before it takes traffic, in order."""

import json
from typing import Any
from urllib.parse import quote

from service.smoke.client import Credentials, json_of
from service.smoke.events import FINISH_REASONS, read_stream
from service.smoke.expectations import expect_error, expect_status, expect_usage, expect_value, take
from service.smoke.failures import CheckFailed, NotApplicable, Reply
from service.smoke.hearing import check_hearing, hear
from service.smoke.latency import check_latency
from service.smoke.readiness import wait_until_ready
from service.smoke.report import Finding
from service.smoke.seeing import check_seeing
from service.smoke.session import Check, Kind, Session
from service.smoke.vectors import check_vectors, vectors_request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_TOKENS = 16
NO_SUCH_MODEL = "levserve-smoke-no-such-model"
NO_SUCH_FIELD = "levserve_smoke_no_such_field"
IGNORED_HEADER = "x-levserve-ignored"
WRONG_KEY = "levserve-smoke-wrong-key"


def check_ready(session: Session) -> Finding:
    """Wait until the service is ready."""
    return wait_until_ready(
        session.client, session.ready_timeout_s, session.report, waits_for_port=session.waits_for_port
    )


def check_models(session: Session) -> Finding:
    """Check that /v1/models lists the requested model, and that the model has its own URL."""
    reply = session.client.get("/v1/models")
    expect_status(reply, 200)
    document = json_of(reply)
    expect_value(reply, document, "object", ("list",))
    count = len(take(reply, document, "data", list))
    served = [take(reply, document, f"data.{i}.id", str) for i in range(count)]
    if not served:
        raise CheckFailed("no model is served", reply)
    if session.requested_model is not None and session.requested_model not in served:
        raise CheckFailed(f"serves {', '.join(served)}, not {session.requested_model}", reply)
    session.model = model = session.requested_model or served[0]
    # One that has answered before, if any, since whoever uploaded the others may not be done.
    listed = [take(reply, document, f"data.{i}", dict) for i in range(count)]
    adapters = sorted((e.get("state") != "ready", e["id"]) for e in listed if e.get("parent") == model)
    session.adapter = adapters[0][1] if adapters else None
    one = session.client.get(f"/v1/models/{quote(model)}")
    expect_status(one, 200)
    expect_value(one, json_of(one), "id", (model,))
    length, capabilities = json_of(one).get("max_model_len"), json_of(one).get("capabilities")
    modalities = json_of(one).get("modalities")
    session.sees = isinstance(modalities, dict) and "image" in (modalities.get("input") or ())
    session.capabilities = frozenset(capabilities) if isinstance(capabilities, list) else None
    return Finding(", ".join(served) + (f", context of {length} tokens" if length else ""), {"models": served})


def check_errors(session: Session) -> Finding:
    """Check that invalid requests are refused in OpenAI's format, and that an unknown field is reported."""
    client = session.client
    expect_error(_send_example(session, model=NO_SUCH_MODEL), 404, code="model_not_found")
    _expect_named_field(_send_example(session, **{NO_SUCH_FIELD: "1"}))
    expect_error(client.post(_json_route(session), b'{"model":'), 400)
    expect_error(client.get("/v1/no-such-route"), 404)
    return Finding(
        "an unknown model, broken JSON and an unknown route are refused in OpenAI's form; an unknown field is named"
    )


def _expect_named_field(reply: Reply) -> None:
    """Expect that an ignored field is reported or, as with STRICT_FIELDS, refused."""
    if reply.status == 400:
        expect_error(reply, 400, param=NO_SUCH_FIELD)
    elif NO_SUCH_FIELD not in reply.headers.get(IGNORED_HEADER, ""):
        raise CheckFailed(f"the answer's {IGNORED_HEADER} does not name a field that it ignored", reply)


def check_auth(session: Session) -> Finding:
    """Check that requests without the given credentials are refused."""
    own = session.client.credentials
    results = []
    if own.api_key is not None:
        wrong = Credentials(WRONG_KEY, own.identity_token)
        for credentials in (wrong, own.without_key()):
            reply = session.client.get("/v1/models", credentials=credentials)
            if reply.status == 200:
                raise CheckFailed("answers without the key: is API_KEY set on the service?", reply)
            expect_error(reply, 401)
        results.append("no key and a wrong key are refused")
    if own.identity_token is not None:
        reply = session.client.get("/v1/models", credentials=own.without_identity())
        if reply.status not in (401, 403):
            raise CheckFailed("answers without an identity token: may anyone call it?", reply)
        results.append("a call without an identity is refused")
    return Finding(" and ".join(results) or "no credentials given or required")


def check_chat(session: Session) -> Finding:
    """Check a chat completion."""
    reply = session.client.post(CHAT, _chat_body(session))
    session.takes_messages = _takes_messages(reply)
    if not session.takes_messages:
        raise NotApplicable("the model has no chat template, so it takes no messages")
    expect_status(reply, 200)
    answer = json_of(reply)
    expect_value(reply, answer, "object", ("chat.completion",))
    expect_value(reply, answer, "model", (session.model_name,))
    expect_value(reply, answer, "choices.0.message.role", ("assistant",))
    text = take(reply, answer, "choices.0.message.content", str)
    reason = expect_value(reply, answer, "choices.0.finish_reason", FINISH_REASONS)
    count = expect_usage(reply, answer, max_tokens=MAX_TOKENS)
    if not text:
        raise CheckFailed("the answer is empty", reply)
    return Finding(f"{_quoted(text)}, {count} tokens, {reason}, {reply.seconds:.2f} s", {"completion_tokens": count})


def check_stream(session: Session) -> Finding:
    """Check a stream: its end, finish reason and usage."""
    streamed = read_stream(session.client, *_text_request(session))
    facts = {"events": streamed.num_events, "completion_tokens": streamed.completion_tokens}
    detail = f"{_quoted(streamed.text)}, {streamed.completion_tokens} tokens in {streamed.num_events} events"
    return Finding(f"{detail}, usage, [DONE]", facts)


def check_completions(session: Session) -> Finding:
    """Check a completion, with log-probabilities unless the service refuses them; and one by an adapter."""
    body = _completion_body(session)
    reply = session.client.post(COMPLETIONS, {**body, "logprobs": 1})
    has_logprobs = reply.status != 400
    if not has_logprobs:
        expect_error(reply, 400, code="unsupported_parameter", param="logprobs")
        reply = session.client.post(COMPLETIONS, body)
    expect_status(reply, 200)
    answer = json_of(reply)
    expect_value(reply, answer, "object", ("text_completion",))
    text = take(reply, answer, "choices.0.text", str)
    reason = expect_value(reply, answer, "choices.0.finish_reason", FINISH_REASONS)
    count = expect_usage(reply, answer, max_tokens=MAX_TOKENS)
    if has_logprobs:
        _expect_logprobs(reply, answer)
    logprobs = "log-probabilities" if has_logprobs else "logprobs are refused by name"
    adapter = session.adapter
    adapted = "" if adapter is None else f"; {adapter}: {_quoted(_complete_by_adapter(session, adapter))}"
    return Finding(f"{_quoted(text)}, {count} tokens, {reason}, {logprobs}{adapted}", {"has_logprobs": has_logprobs})


def _complete_by_adapter(session: Session, adapter: str) -> str:
    reply = session.client.post(COMPLETIONS, {**_completion_body(session), "model": adapter})
    expect_status(reply, 200)
    expect_value(reply, json_of(reply), "model", (adapter,))
    return take(reply, json_of(reply), "choices.0.text", str)


ALL_CHECKS = (
    Check("ready", check_ready, frozenset()),
    Check("models", check_models),
    Check("auth", check_auth),
    Check("chat", check_chat, frozenset({"ready", "models"}), kind=Kind.TEXT),
    Check("errors", check_errors),
    Check("stream", check_stream, frozenset({"ready", "models"}), kind=Kind.TEXT),
    Check("completions", check_completions, frozenset({"ready", "models"}), kind=Kind.TEXT),
    Check("seeing", check_seeing, frozenset({"ready", "models", "chat"}), kind=Kind.TEXT, is_of_images=True),
    Check("vectors", check_vectors, frozenset({"ready", "models"}), kind=Kind.VECTORS),
    Check("hearing", check_hearing, frozenset({"ready", "models"}), kind=Kind.TRANSCRIPTS),
    Check("latency", check_latency, frozenset({"ready", "models", "stream", "vectors", "hearing"})),
)


def _send_example(session: Session, **changes: str) -> Reply:
    """Send a request that suits the model, but for some fields; one without a chat template takes no messages."""
    match session.kind:
        case Kind.TEXT:
            path, body = _text_request(session)
            return session.client.post(path, body | changes)
        case Kind.VECTORS:
            path, body = vectors_request(session)
            return session.client.post(path, body | changes)
        case Kind.TRANSCRIPTS:
            return hear(session, **changes)


def _json_route(session: Session) -> str:
    """Return a route that takes JSON."""
    return vectors_request(session)[0] if session.kind is Kind.VECTORS else CHAT


def _text_request(session: Session) -> tuple[str, dict[str, Any]]:
    return (CHAT, _chat_body(session)) if session.takes_messages else (COMPLETIONS, _completion_body(session))


def _chat_body(session: Session) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Who are you?"}]
    return {"model": session.model_name, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}


def _completion_body(session: Session) -> dict[str, Any]:
    return {"model": session.model_name, "prompt": "Once upon a time", "max_tokens": MAX_TOKENS, "temperature": 0}


def _takes_messages(reply: Reply) -> bool:
    """Return whether the model accepts messages; a base model has no chat template and refuses them."""
    if reply.status != 400 or b"chat template" not in reply.body:
        return True
    expect_error(reply, 400, param="messages")
    return False


def _expect_logprobs(reply: Reply, answer: Any) -> None:
    """Expect one entry per token in each list.

    Source: https://platform.openai.com/docs/api-reference/completions/object
    """
    lists = [
        take(reply, answer, f"choices.0.logprobs.{name}", list)
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    ]
    if len({len(values) for values in lists}) != 1 or not lists[0]:
        raise CheckFailed(f"the lists of logprobs have {[len(values) for values in lists]} entries", reply)
    if not all(value is None or (isinstance(value, int | float) and value <= 0) for value in lists[1]):
        raise CheckFailed("a token's logprob is not a number that is at most 0", reply)


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else text[:40] + "…", ensure_ascii=False)
