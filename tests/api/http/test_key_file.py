"""Keys from a file: what is refused at the start, what a change does, and what a key may do, through a socket."""

import json
import logging

import pytest

from service.engine.request import FinishReason
from service.errors import SettingsError
from service.server.connection import Connection
from service.server.key_file import open_keys
from service.settings.sources import load_settings
from tests.api.scripted_engine import MODEL, Service, tokens
from tests.sockets import body_from, connected, served, wait_until

KEYS = [
    {"name": "search", "secret": "sk-canary-1", "weight": 2, "can_prioritize": True},
    {"name": "chat", "secret": "sk-canary-2"},
    "sk-canary-3",
]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "keys.yaml").write_text(json.dumps(KEYS))
    return tmp_path / "keys.yaml"


def keys_of(path, **settings):
    return open_keys(load_settings({"api_key_file": str(path), **settings}), look_interval_s=0.02)


def opened_by(keys, secret):
    return keys.verify({"headers": [(b"authorization", f"Bearer {secret}".encode())]})[0]


def answer_to(server, secret, **fields):
    body = json.dumps({"model": MODEL, "prompt": "Once"} | fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {secret}\r\n"
    with connected(server) as client:
        client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return json.loads(body_from(client))


def test_the_keys_of_the_file_open_beside_the_plain_ones(path):
    keys = keys_of(path, api_key="sk-plain:with:colons, other")
    names = [opened_by(keys, s).name for s in ("sk-plain:with:colons", "other", *(f"sk-canary-{i}" for i in (1, 2, 3)))]
    assert names == ["api_key_1", "api_key_2", "search", "chat", "file_key_3"]
    search = opened_by(keys, "sk-canary-1")
    assert (search.weight, search.can_prioritize) == (2.0, True)
    assert "canary" not in repr(search)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "or is empty"),
        ("[]", "or is empty"),
        ("canary", "is not a list"),
        ("- [canary", "not valid YAML"),
        ("- ' '", "key 1 needs a nonblank `secret`"),
        ("- 12345", "key 1 needs a nonblank `secret`"),
        ("- name: canary", "needs a nonblank `secret`"),
        ("- {secret: canary, name: ''}", "needs a `name`"),
        ('- {secret: canary, name: "a\\nb"}', "needs a `name`"),
        ("- {secret: canary, weight: 0}", "needs a `weight`"),
        ("- {secret: canary, weight: .nan}", "needs a `weight`"),
        ("- {secret: canary, weight: true}", "needs a `weight`"),
        ("- {secret: canary, can_prioritize: 1}", "can_prioritize"),
        ("- {secret: canary, wieght: 1}", "may only have"),
        ("[canary, canary]", "the same secret"),
        ("[{secret: a, name: x}, {secret: canary, name: x}]", "the same name"),
        ("[sk-plain]", "the same secret"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_stops_the_start_and_no_secret_is_shown(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "keys").write_text(content)
    with pytest.raises(SettingsError, match=reason) as caught:
        keys_of(tmp_path / "keys", api_key="sk-plain")
    assert str(caught.value).startswith("API_KEY_FILE: ")
    assert "canary" not in str(caught.value)


def test_a_change_of_the_file_counts_at_once_and_a_bad_one_keeps_the_old_keys(path, caplog):
    caplog.set_level(logging.INFO)
    service = Service(keys=keys_of(path))
    with served(service.app, Connection) as server:
        assert "choices" in answer_to(server, "sk-canary-1")
        path.write_text("- ' '")
        wait_until(lambda: "keeping the previous keys" in caplog.text)
        assert "choices" in answer_to(server, "sk-canary-1")
        replacement = path.with_name("new")
        replacement.write_text("[sk-canary-new]")
        replacement.replace(path)
        wait_until(lambda: "choices" in answer_to(server, "sk-canary-new"))
        assert answer_to(server, "sk-canary-1")["error"]["code"] == "invalid_api_key"
    assert "canary" not in caplog.text


def test_the_log_names_the_key_and_only_some_keys_overtake(path, caplog):
    caplog.set_level(logging.INFO)
    service = Service([*tokens("Hello"), FinishReason.STOP], keys=keys_of(path))
    with served(service.app, Connection) as server:
        refused = answer_to(server, "sk-canary-2", priority=-1)["error"]
        assert (refused["code"], refused["param"]) == ("priority_not_allowed", "priority")
        assert service.engine.streams == []
        assert "choices" in answer_to(server, "sk-canary-2", priority=1)
        assert "choices" in answer_to(server, "sk-canary-1", priority=-1)
        assert service.engine.last.request.priority == -1
        wait_until(lambda: len([r for r in caplog.records if r.getMessage() == "request"]) == 3)
    logged = [record.api_key for record in caplog.records if record.getMessage() == "request"]
    assert logged == ["chat", "chat", "search"]
    assert not any("canary" in str(vars(record)) for record in caplog.records)
