"""What models and clients write is data: through a socket, no expression is evaluated and no address is opened."""

import json
import socket

import pytest

from service.server.connection import Connection
from tests.api.scripted_engine import MODEL
from tests.api.test_tools import TEMPLATES, service_of
from tests.sockets import body_from, connected, served

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
PARAMETERS = {"type": "object", "properties": {"at": {"type": "object"}, "names": {"type": "array"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
CALLS = {
    "hermes": '<tool_call>{{"name": "weather", "arguments": {{"at": {0}}}}}</tool_call>',
    "mistral": '[TOOL_CALLS][{{"name": "weather", "arguments": {{"at": {0}}}}}]',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=at>\n{0}\n</parameter>\n<parameter=names>\n[{0}]\n"
    "</parameter>\n</function>\n</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{{"at": {0}}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}


def answer_to(server, **fields):
    """Return the status and the body of the answer."""
    content = json.dumps({"model": MODEL} | fields).encode()
    with connected(server) as client:
        client.sendall(HEAD.format(len(content)).encode() + content)
        status = int(client.recv(12, socket.MSG_PEEK).split()[1])
        return status, json.loads(body_from(client))


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_expression_in_the_arguments_of_a_call_is_not_evaluated(template, tmp_path):
    canary = tmp_path / "canary"
    expression = f"open('{canary}', 'w').close()"
    service = service_of(CALLS[template].format(expression), template=template)
    with served(service.app, Connection) as server:
        status, body = answer_to(server, messages=[{"role": "user", "content": "hi"}], tools=TOOLS)
    assert (status, expression in json.dumps(body["choices"][0]["message"])) == (200, True)
    assert not canary.exists()


@pytest.mark.parametrize(
    "url",
    ["http://{}/a.png", "http://a\\@{}/", "//{}/a.png", "data:image/png;base64,iVBORw0KGgo=", "file:///etc/hostname"],
)
@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
def test_media_are_neither_fetched_nor_decoded(kind, url):
    with socket.create_server(("127.0.0.1", 0)) as listener, served(service_of("Hi").app, Connection) as server:
        address = ":".join(map(str, listener.getsockname()))
        part = {"type": kind, kind: {"url": url.format(address)}}
        status, body = answer_to(server, messages=[{"role": "user", "content": [part]}])
        assert (status, body["error"]["param"]) == (400, "messages[0].content[0].type")
        markdown = f"![a]({url.format(address)})"
        assert answer_to(server, messages=[{"role": "user", "content": markdown}])[0] == 200
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
