"""Words that must not leave the service: keys, tokens, prompts and what tools say, in anything that it writes."""

import http.server
import json
import os
import threading
from typing import ClassVar

import httpx
import pytest

from tests.process import ServiceProcess, running_service

KEY, ADMIN, TOKEN = "key-7f3a-canary", "admin-91bc-canary", "hf_5d20canary"
PROMPT, RESULT = "prompt-44e1-canary", "result-c07d-canary"
SECRETS = (KEY, ADMIN, TOKEN, PROMPT, RESULT)
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": f'{{"x": "{PROMPT}"}}'}}
MESSAGES = [
    {"role": "user", "content": PROMPT},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": RESULT},
]
TOOL = {"type": "function", "function": {"name": "f", "description": RESULT, "parameters": {"type": "object"}}}
CHAT = {"model": "levserve-demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
TEXT = {"model": "levserve-demo", "prompt": PROMPT, "max_tokens": 3}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
REQUESTS = [
    (CHATS, CHAT),
    (CHATS, CHAT | {"stream": True, "user": "u"}),
    (CHATS, CHAT | {"messages": MESSAGES, "tools": [TOOL]}),
    (CHATS, CHAT | {"temperature": PROMPT}),
    (CHATS, CHAT | {"messages": PROMPT}),
    (CHATS, CHAT | {"messages": [{"role": PROMPT, "content": RESULT}]}),
    (CHATS, CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": PROMPT, "schema": 7}}}),
    (CHATS, CHAT | {"messages": [{"role": "user", "content": PROMPT * 4000}]}),
    (COMPLETIONS, TEXT),
    (COMPLETIONS, TEXT | {"prompt": PROMPT * 4000}),
    (COMPLETIONS, TEXT | {"stop": [PROMPT] * 9}),
    (COMPLETIONS, TEXT | {"logit_bias": {PROMPT: 1}}),
    ("/v1/responses", {"model": "levserve-demo", "input": PROMPT, "max_output_tokens": 3}),
    ("/tokenize", {"model": "levserve-demo", "prompt": [PROMPT]}),
]
LONE = {"role": "user", "content": f"{PROMPT}\ud800"}
BODIES = [json.dumps(CHAT | {"messages": [LONE]}).encode()]
BODIES += [
    b"{" + PROMPT.encode(),
    b"[]" + RESULT.encode(),
    b'{"prompt": "' + PROMPT.encode(),
    b"\xff" + PROMPT.encode(),
]


def leaked(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.slow
@pytest.mark.usefixtures("cold_start")
@pytest.mark.parametrize("log_level", ["INFO", "DEBUG"])
def test_no_secret_and_no_prompt_is_in_logs_metrics_errors_or_stats(log_level, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    seen = {}
    with running_service(api_key=KEY, admin_api_key=ADMIN, log_level=log_level, metrics_compat="vllm") as service:
        bearer, admin = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Bearer {ADMIN}"}
        with httpx.Client(base_url=service.url, headers=bearer, timeout=60) as client:
            for number, (path, body) in enumerate(REQUESTS):
                answer = client.post(path, json=body)
                if answer.status_code != 200:
                    seen[f"{number} {path}"] = answer.text
            for content in BODIES:
                answer = client.post(CHATS, content=content, headers={"Content-Type": "application/json"})
                seen[f"{content!r}"] = answer.text
            for headers in (admin, {"Authorization": f"Basic {KEY}"}, {"Authorization": f"Bearer {KEY}x"}):
                seen[f"refused {headers}"] = client.post(COMPLETIONS, json=TEXT, headers=headers).text
            seen["another route"] = client.get(f"/nowhere?key={KEY}&q={PROMPT}").text
            for path in ("/metrics", "/v1/models", "/health/ready", "/openapi.json"):
                seen[path] = client.get(path).text
            seen["stats"] = client.get("/admin/stats", headers=admin).text
            seen["refused stats"] = client.get("/admin/stats").text
            leaving = threading.Thread(target=abandon, args=(client,))
            leaving.start()
            leaving.join()
        assert service.stop() == 0
    assert len(seen) > 15
    assert {name: found for name, text in seen.items() if (found := leaked(text))} == {}
    assert [line for line in service.raw if leaked(line)] == []


def abandon(client: httpx.Client) -> None:
    with client.stream("POST", CHATS, json=CHAT | {"stream": True, "max_tokens": 500}) as response:
        next(response.iter_lines())


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["hf://org/name", "gs://bucket/model"])
def test_a_pull_that_fails_shows_no_token(uri, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    settings = {"storage_emulator_host": "http://127.0.0.1:9"} if uri.startswith("gs") else {}
    settings |= {"api_key": KEY, "admin_api_key": ADMIN, "pull_timeout": 3, "local_model_cache": tmp_path}
    with ServiceProcess(model_uri=uri, log_level="DEBUG", **settings) as service:
        assert service.exit_code == 1
    assert TOKEN in os.environ["HF_TOKEN"]
    assert service.raw
    assert leaked("\n".join(service.raw)) == []


class QuotingHub(http.server.BaseHTTPRequestHandler):
    """A Hub that refuses every token, and quotes it wherever its client reads what happened."""

    seen: ClassVar[list[str]] = []

    def do_GET(self):
        token = self.headers.get("Authorization", "")
        self.seen.append(token)
        body = json.dumps({"error": token}).encode()
        self.send_response(403)
        for name in ("X-Error-Message", "X-Error-Code", "X-Request-Id", "WWW-Authenticate"):
            self.send_header(name, token)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_model_that_the_hub_refuses_shows_no_token_to_those_who_name_it(monkeypatch, tmp_path):
    (tmp_path / "models.yaml").write_text("models:\n  - {name: private, uri: 'hf://org/name'}\n")
    settings = {"models_config": tmp_path / "models.yaml", "admin_api_key": ADMIN, "pull_timeout": 5}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), QuotingHub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        environment = {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with running_service(**settings, local_model_cache=tmp_path, log_level="DEBUG") as service:
            answer = httpx.post(f"{service.url}{COMPLETIONS}", json=TEXT | {"model": "private"}, timeout=60)
            models = httpx.get(f"{service.url}/admin/models", headers={"Authorization": f"Bearer {ADMIN}"})
            service.stop()
        hub.shutdown()
    assert any(TOKEN in token for token in QuotingHub.seen)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_load_failed")
    assert "hf://org/name" in models.text  # where an operator finds the reason
    assert leaked(answer.text) + leaked(models.text) == []
    assert [line for line in service.raw if leaked(line)] == []
