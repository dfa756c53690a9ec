"""The worst bodies of one key beside another key's chat, and a template that does not end beside another model's."""

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from scripts.fuzz_neighbours import BOUND_S, Probes
from scripts.soak.client import MODEL
from scripts.soak.figures import Figure, Scale, count
from tests.process import ServiceProcess

NUM_AT_ONCE = 8
CHAT_TOKENS = 8
HEAVY_S, TIMEOUT_S = 30.0, 120.0  # within which an answer is waited for
LATER_S, TIMES = 1.0, 1.5  # the bounds
KEYS = "- {name: heavy, secret: sk-heavy}\n- {name: plain, secret: sk-plain}\n"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DEMO = Path(__file__).parents[2] / "service" / "demo"
HI = [{"role": "user", "content": "hi"}]
Body = tuple[str, Mapping[str, Any]]  # with its route


def heavy_bodies() -> Mapping[str, Body]:
    """Return bodies that have held others up, or take longest, by name."""

    def chat(**fields: Any) -> Body:
        return "/v1/chat/completions", {"model": MODEL, "messages": HI, "max_tokens": 1, **fields}

    def grammar(text: str) -> Body:
        return chat(structured_outputs={"grammar": text})

    rules = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(50))
    fields = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{1,{i % 50 + 1}}}$"} for i in range(2000)}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    turns = [{"role": "user", "content": "\\[<|im_start|>"}] * 4000
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "eNpLTAQAAskBKg" * 4000}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(2)]
    return {
        "lines of a grammar": grammar("\n" * 120_000 + 'root ::= "a"'),
        "rules of a grammar": grammar(f'root ::= r0\n{rules}r50 ::= "a"\n'),
        "a large grammar": grammar("root ::= " + '"a"? ' * 6000),
        "a pattern": chat(structured_outputs={"regex": "[a-z]* " * 4200}),
        "a schema": chat(structured_outputs={"json": schema}),
        "tools": chat(tools=tools, tool_choice="required"),
        "forged thinking": ("/v1/responses", {"model": MODEL, "input": [thought] * 5, "max_output_tokens": 1}),
        "many turns": ("/v1/messages", {"model": MODEL, "messages": turns, "max_tokens": 1}),
        "a long text": ("/tokenize", {"model": MODEL, "prompt": "aA1 \n" * 60_000}),
    }


def neighbours(scale: Scale) -> Iterator[Figure]:
    """Yield, for each of the heavy bodies, what another key's chat and a health check wait beside it."""
    with tempfile.TemporaryDirectory() as folder:
        (keys := Path(folder, "keys.yaml")).write_text(KEYS)
        with ServiceProcess(api_key_file=keys) as service:
            url = service.wait_until_ready().url
            for name, body in heavy_bodies().items():
                row = f"{NUM_AT_ONCE} at once of one key: {name}"
                alone, _ = _beside(url, "sk-plain", MODEL, scale.neighbour_s, [])
                probes = Probes(url)
                beside, statuses = _beside(
                    url, "sk-plain", MODEL, scale.neighbour_s, [body] * NUM_AT_ONCE, heavy_key="sk-heavy"
                )
                health_s = probes.worst_s()
                probes.end()
                later_s = max(beside) - max(alone)
                figure = f"{later_s:.2f} s later: {max(beside):.2f} s, alone {max(alone):.2f} s; {count(statuses)}"
                bound = f"another key's chat at most {LATER_S:g} s later"
                yield Figure(row, bound, figure, later_s <= LATER_S, is_timing=True)
                bound = f"/health/live within {BOUND_S} s"
                yield Figure(row, bound, f"{health_s:.3f} s at most", health_s <= BOUND_S, is_timing=True)


def endless_templates(scale: Scale) -> Iterator[Figure]:
    """Yield how long another model's chat takes beside requests of a model whose template does not end."""
    row = f"{NUM_AT_ONCE} requests at once of a model whose template does not end"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "endless"):
            shutil.copytree(DEMO, Path(folder, "models", name))
        Path(folder, "models", "endless", "chat_template.jinja").write_text(ENDLESS)
        settings = {"catalogue_uri": Path(folder, "models"), "local_model_cache": Path(folder, "cache")}
        with ServiceProcess(**settings, max_num_seqs=4, max_model_len=512) as service:
            url = service.wait_until_ready().url
            for model in ("plain", "endless"):  # loads it
                text = {"model": model, "prompt": "a", "max_tokens": 1}
                httpx.post(f"{url}/v1/completions", json=text, timeout=TIMEOUT_S).raise_for_status()
            _beside(url, "none", "plain", scale.neighbour_s, [])
            body: Body = ("/v1/chat/completions", {"model": "endless", "messages": HI, "max_tokens": 1})
            alone, _ = _beside(url, "none", "plain", scale.neighbour_s, [])
            beside, statuses = _beside(url, "none", "plain", scale.neighbour_s, [body] * NUM_AT_ONCE)
    times = statistics.median(beside) / statistics.median(alone)
    figure = f"{times:.2f} times: {statistics.median(beside):.3f} s, at most {max(beside):.2f} s; {count(statuses)}"
    bound = f"another model's chat takes at most {TIMES:g} times as long"
    yield Figure(row, bound, figure, times <= TIMES, is_timing=True)


def _beside(
    url: str, key: str, model: str, seconds: float, bodies: Sequence[Body], *, heavy_key: str = "none"
) -> tuple[list[float], list[str]]:
    """Chat for some seconds while bodies are sent again and again; return the seconds of each chat, and statuses."""
    is_over, statuses = threading.Event(), list[str]()

    def send(body: Body) -> None:
        path, document = body
        content, headers = json.dumps(document).encode(), {"authorization": f"Bearer {heavy_key}"}
        with httpx.Client(base_url=url, timeout=HEAVY_S, headers=headers) as client:
            while not is_over.is_set():
                try:
                    answer = client.post(path, content=content, headers={"content-type": "application/json"})
                    statuses.append(str(answer.status_code))
                except httpx.TimeoutException:
                    statuses.append("without an answer")
                is_over.wait(0.05)  # of a refusal that comes at once there would be too many

    chat = {"model": model, "messages": HI, "max_tokens": CHAT_TOKENS, "temperature": 0, "ignore_eos": True}
    taken_s = list[float]()
    with (
        ThreadPoolExecutor(max(1, len(bodies))) as senders,
        httpx.Client(base_url=url, timeout=TIMEOUT_S, headers={"authorization": f"Bearer {key}"}) as client,
    ):
        sending = [senders.submit(send, body) for body in bodies]
        end_s = time.monotonic() + seconds
        try:
            while time.monotonic() < end_s or not taken_s:
                begin_s = time.monotonic()
                client.post("/v1/chat/completions", json=chat).raise_for_status()
                taken_s.append(time.monotonic() - begin_s)
        finally:
            is_over.set()
        for each in sending:
            each.result()
    return taken_s, statuses
