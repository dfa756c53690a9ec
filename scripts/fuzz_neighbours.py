"""Look for the body of each route that holds its neighbours longest: `python -m scripts.fuzz_neighbours [--seed N]`.

A service with the demo model gets bodies that one seed determines: on each route some field grows, and what has taken
the longest grows further. Beside each body another client asks for `/health/live` all the time; a body
that keeps it waiting beyond the bound does so three times, so that a busy machine is not taken for a slow service.
Prints a table, keeps the bodies that exceed the bound, and exits with 1 if there are any.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.process import ServiceProcess

BOUND_S = 0.25
PROBE = "/health/live"
NUM_TRIES = 3
CONTROL_EVERY, CONTROL_S = 20, 0.5  # bodies, between which nothing is sent for a while
TIMEOUT_S = 60.0
CHAT = [{"role": "user", "content": "hi"}]
MODEL = {"model": "levserve-demo", "max_tokens": 1}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
UNITS = (
    *(
        "\n",
        " ",
        "a",
        "é",
        "🌍",
        "\\",
        '"',
        "<",
        "{",
        "[",
        "(",
        "a ",
        "aA1",
        "\r\n",
        "\x00",
        "<|im_start|>",
        "]]",
        "::=",
    ),
    *("[a-z]* ", "(a|b)?", "a{0,9}", "start: A\n", 'root ::= "a"\n', "%ignore /a/\n", "\ufeff", "0", "-1e9,", "=", "_"),
)


class Route(NamedTuple):
    """A route, a body that it answers, and the paths of its fields that grow."""

    path: str
    body: Mapping[str, Any]
    fields: tuple[str, ...]


SAMPLED = ("stop", "bad_words", "logit_bias", "user", "metadata", "stop_token_ids", "allowed_token_ids", "unknown")
GRAMMARS = (
    "structured_outputs.grammar",
    "structured_outputs.regex",
    "structured_outputs.choice",
    "structured_outputs.json",
)
ROUTES = (
    Route(
        "/v1/chat/completions",
        MODEL | {"messages": CHAT},
        (
            *("messages", "messages.0.content", "messages.0.name", "tools", "tools.0.function.parameters"),
            *("response_format", "chat_template_kwargs", "documents", *SAMPLED, *GRAMMARS),
        ),
    ),
    Route("/v1/chat/completions/render", MODEL | {"messages": CHAT}, ("messages", "messages.0.content", "tools")),
    Route("/v1/completions", MODEL | {"prompt": "hi"}, ("prompt", "suffix", *SAMPLED, *GRAMMARS)),
    Route("/v1/completions/render", MODEL | {"prompt": "hi"}, ("prompt",)),
    Route(
        "/v1/responses",
        {"model": MODEL["model"], "input": "hi", "max_output_tokens": 1},
        ("input", "input.0", "instructions", "tools", "text.format", "metadata", "user", "unknown"),
    ),
    Route(
        "/v1/messages", MODEL | {"messages": CHAT}, ("messages", "messages.0.content", "system", "tools", "metadata")
    ),
    Route("/v1/messages/count_tokens", {"model": MODEL["model"], "messages": CHAT}, ("messages", "system", "tools")),
    Route("/api/chat", MODEL | {"messages": CHAT}, ("messages", "format", "options", "tools")),
    Route("/api/generate", MODEL | {"prompt": "hi"}, ("prompt", "system", "template", "suffix", "format", "options")),
    Route("/tokenize", {"model": MODEL["model"], "prompt": "hi"}, ("prompt", "messages")),
    Route("/detokenize", {"model": MODEL["model"], "tokens": [1]}, ("tokens",)),
    Route("/v1/embeddings", {"model": MODEL["model"], "input": "hi"}, ("input",)),
    Route("/v1/rerank", {"model": MODEL["model"], "query": "a", "documents": ["b"]}, ("query", "documents")),
    Route("/invocations", MODEL | {"messages": CHAT}, ("messages", "prompt")),
    Route(
        "/v1/batches", {"input_file_id": "x", "endpoint": "/v1/completions"}, ("input_file_id", "metadata", "unknown")
    ),
)


class Shape(NamedTuple):
    """How a field grows: what is repeated, in which form, and up to how many bytes."""

    field: str
    form: str
    unit: str
    num_bytes: int


def _repeated(unit: str, num_bytes: int) -> str:
    return unit * max(1, num_bytes // len(unit.encode()))


def _chain(_: str, num_bytes: int) -> str:
    count = max(1, num_bytes // 16)
    rules = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(count))
    return f'root ::= r0\n{rules}r{count} ::= "a"\n'


def _nested(unit: str, num_bytes: int) -> Any:
    value: Any = unit
    for _ in range(min(100, num_bytes // 8)):
        value = {"a": value}
    return value


def _schema(unit: str, num_bytes: int) -> dict[str, Any]:
    count = max(1, num_bytes // 60)
    return {
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "pattern": f"^{unit}{i}$"} for i in range(count)},
        "required": [f"p{i}" for i in range(0, count, 2)],
    }


def _doubling(_: str, num_bytes: int) -> dict[str, Any]:
    count = max(1, num_bytes // 90)
    definitions: dict[str, Any] = {
        f"d{i}": {kind: [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
        for i in range(count)
        for kind in (("allOf", "anyOf")[i % 2],)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{count}": {"type": "object"}}}


FORMS: Mapping[str, Callable[[str, int], Any]] = {
    "text": _repeated,
    "texts": lambda unit, num: [unit] * max(1, num // (len(unit.encode()) + 3)),
    "numbers": lambda unit, num: [1] * max(1, num // 2),
    "rows": lambda unit, num: [[1]] * max(1, num // 4),
    "keys": lambda unit, num: {f"{unit}{i}": 1 for i in range(max(1, num // (len(unit.encode()) + 9)))},
    "turns": lambda unit, num: [{"role": "user", "content": unit}] * max(1, num // (len(unit.encode()) + 32)),
    "parts": lambda unit, num: [{"type": "text", "text": unit}] * max(1, num // (len(unit.encode()) + 28)),
    "thoughts": lambda unit, num: (
        [{"type": "reasoning", "summary": [], "encrypted_content": _repeated("eNpLTAQAAskBKg", num // 4)}] * 4
    ),
    "tools": lambda unit, num: [TOOL] * max(1, num // 70),
    "chain": _chain,
    "nested": _nested,
    "schema": _schema,
    "format": lambda unit, num: {"type": "json_schema", "json_schema": {"name": "a", "schema": _schema(unit, num)}},
    "doubling": _doubling,
    "object": lambda unit, num: {"type": "json_schema", "json_schema": {"name": "a", "schema": _doubling(unit, num)}},
}


# The forms that a field takes, by its last name; others are refused early.
FORMS_OF: Mapping[str, tuple[str, ...]] = {
    "messages": ("turns",),
    "content": ("text", "parts"),
    "input": ("text", "texts", "turns", "thoughts", "numbers", "rows"),
    "prompt": ("text", "texts", "numbers", "rows"),
    "tools": ("tools",),
    "parameters": ("schema", "doubling", "nested", "keys"),
    "json": ("schema", "doubling", "nested", "keys"),
    "format": ("schema", "doubling", "format", "object"),
    "response_format": ("format", "object"),
    "grammar": ("text", "chain"),
    "tokens": ("numbers",),
    "documents": ("texts",),
    "choice": ("texts",),
    "stop": ("texts", "text"),
    "bad_words": ("texts",),
    "stop_token_ids": ("numbers",),
    "allowed_token_ids": ("numbers",),
} | dict.fromkeys(("chat_template_kwargs", "metadata", "logit_bias", "options"), ("keys", "nested"))
ANY_FORM_SHARE = 0.2  # of bodies, which take any form all the same


def body_of(route: Route, shape: Shape) -> bytes:
    """Return a body of a route in which one field has grown."""
    body = json.loads(json.dumps(route.body))
    value, steps = FORMS[shape.form](shape.unit, shape.num_bytes), shape.field.split(".")
    if steps[0] == "tools" and len(steps) > 1:
        body["tools"] = [json.loads(json.dumps(TOOL))]
    target: Any = body
    for step, following in pairwise(steps):
        key: Any = int(step) if step.isdigit() else step
        if not isinstance(target, list) and (key not in target or not isinstance(target[key], dict | list)):
            target[key] = [{}] if following.isdigit() else {}
        target = target[key]
    last: Any = int(steps[-1]) if steps[-1].isdigit() else steps[-1]
    target[last] = value
    return json.dumps(body, ensure_ascii=False).encode()


class Probes:
    """Asks whether the service lives, all the time, and notes the longest wait."""

    def __init__(self, url: str) -> None:
        self._host, self._is_over, self._worst_s = urlsplit(url).netloc, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def worst_s(self) -> float:
        """Return the longest wait since this was asked last."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def end(self) -> None:
        """Ask no more."""
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        while not self._is_over.wait(0.01):
            begin_s = time.perf_counter()
            connection.request("GET", PROBE)
            connection.getresponse().read()
            self._worst_s = max(self._worst_s, time.perf_counter() - begin_s)


def sent(url: str, path: str, body: bytes) -> tuple[int, float]:
    """Return the status and the seconds of one request; 0 for none within the time."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    begin_s = time.perf_counter()
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status, time.perf_counter() - begin_s
    except OSError:
        return 0, time.perf_counter() - begin_s
    finally:
        connection.close()


class Worst(NamedTuple):
    """What a route has been found to do at worst."""

    waited_s: float = 0.0
    num_bytes: int = 1
    status: int = 0
    taken_s: float = 0.0
    shape: Shape | None = None


def grown(rng: random.Random, route: Route, worst: Worst) -> Shape:
    """Return a shape to try: a new one, or the worst one so far with more of it."""
    if worst.shape is not None and rng.random() < 0.5:
        old = worst.shape
        other = rng.choice([old.unit, rng.choice(UNITS)])
        return old._replace(unit=other, num_bytes=min(1_000_000, int(old.num_bytes * rng.uniform(0.5, 3))))
    size, field = int(10 ** rng.uniform(2, 5.3)), rng.choice(route.fields)
    forms = FORMS_OF.get(field.rpartition(".")[2], ("text", *FORMS))
    form = rng.choice([*FORMS] if rng.random() < ANY_FORM_SHARE else forms)
    return Shape(field, form, rng.choice(UNITS), size)


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz_neighbours", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--keep", type=Path, default=Path(".cache/fuzz_neighbours"), help="where bodies are kept")
    arguments = parser.parse_args()
    rng, found = random.Random(arguments.seed), 0
    worst = dict.fromkeys((route.path for route in ROUTES), Worst())
    with ServiceProcess() as service:
        url = service.wait_until_ready().url
        probes = Probes(url)
        end_s, number, control_s = time.monotonic() + 60 * arguments.minutes, 0, 0.0
        while time.monotonic() < end_s:
            if number % CONTROL_EVERY == 0:
                probes.worst_s()
                time.sleep(CONTROL_S)
                control_s = max(control_s, probes.worst_s())
            route, number = ROUTES[number % len(ROUTES)], number + 1
            shape = grown(rng, route, worst[route.path])
            body = body_of(route, shape)
            waited_s = TIMEOUT_S
            for _ in range(NUM_TRIES):
                probes.worst_s()
                status, taken_s = sent(url, route.path, body)
                waited_s = min(waited_s, probes.worst_s())
                if waited_s <= BOUND_S:
                    break
            if waited_s > BOUND_S + control_s:
                found += 1
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{route.path.strip('/').replace('/', '_')}-{found}.json").write_bytes(body)
                print(f"{route.path} waits {waited_s:.2f} s, {status}, {len(body)} bytes: {shape}", file=sys.stderr)
            if waited_s > worst[route.path].waited_s:
                worst[route.path] = Worst(waited_s, len(body), status, taken_s, shape)
        probes.end()
    print(f"{number} bodies, {found} beyond {BOUND_S} s and the {control_s:.3f} s while nothing was sent\n")
    print(f"| route | `{PROBE}` waits | bytes | status | field, form |")
    print("| --- | --: | --: | --: | --- |")
    for path, one in worst.items():
        what = "" if one.shape is None else f"{one.shape.field}, {one.shape.form} of {one.shape.unit!r}"
        print(f"| {path} | {one.waited_s:.3f} s | {one.num_bytes} | {one.status} | {what} |")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
