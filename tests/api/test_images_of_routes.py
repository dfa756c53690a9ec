"""Images on every route, in messages and in results of tools, however clients write them; the engine is scripted."""

import asyncio
import base64
import urllib.parse

import pytest

from service.api.generation.data_urls import read_data_url
from service.errors import InvalidParameter, UnsupportedParameter
from service.text.chat_template import ChatTemplate
from tests.api import test_decisions
from tests.api.scripted_engine import MODEL, Service
from tests.api.test_seeing import IMAGE_ID, TOKENIZER, service_of
from tests.media.image_files import drawing, image_file
from tests.parity.vision_cases import NUM_ROWS
from tests.sighted import PLACEHOLDER, TEMPLATE, data_url, shown

# Whose template writes results of tools as text alone, as most do.
TEXT_OF_RESULTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is string %}{{ m.content }}"
    "{% elif m.role == 'tool' %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% endif %}{% endfor %}"
    "{% else %}{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>{% endfor %}"
)
FILE = image_file("PNG")
OTHER = image_file("PNG", drawing(30, 40))
ENCODED = base64.b64encode(FILE).decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": ENCODED}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TILES = 5


def post(service, path, body):
    answer = asyncio.run(service.post(path, {"model": MODEL} | body))
    service.fastapi.state.context.media.end()
    return answer


def sent(service, path, body):
    """Return the prompt of a request, and the digests of its images."""
    answer = post(service, path, body)
    assert answer.status_code == 200, answer.text
    request = service.engine.last.request
    return request.prompt_ids, [placed.medium.digest for placed in request.media]


def text_of(prompt_ids):
    return TOKENIZER.backend.decode(list(prompt_ids), skip_special_tokens=False)


def chat_of(*results):
    calls = [CALL | {"id": str(number)} for number in range(len(results))]
    turns = [
        {"role": "tool", "tool_call_id": str(number), "content": content} for number, content in enumerate(results)
    ]
    return [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "", "tool_calls": calls}, *turns]


def part(content=FILE):
    return {"type": "image_url", "image_url": {"url": data_url(content)}}


@pytest.mark.parametrize("image", [ENCODED, data_url(FILE), base64.encodebytes(FILE).decode()])
def test_ollamas_images_are_seen_before_the_text(image):
    chat = sent(service_of(), "/v1/chat/completions", {"messages": shown(data_url(FILE))})
    body = {"stream": False, "messages": [{"role": "user", "content": "What is it?", "images": [image]}]}
    assert sent(service_of(), "/api/chat", body) == chat
    generated = {"stream": False, "prompt": "What is it?", "images": [image]}
    assert sent(service_of(), "/api/generate", generated) == chat


def test_ollamas_prompt_may_be_an_image_alone():
    service = service_of()
    assert len(sent(service, "/api/generate", {"stream": False, "images": [ENCODED]})[1]) == TILES


def test_ollamas_images_are_refused_by_their_names():
    bad = base64.b64encode(b"no image").decode()
    message = {"role": "user", "content": "a", "images": [ENCODED, bad]}
    answer = post(service_of(), "/api/chat", {"messages": [message]})
    assert (answer.status_code, "'messages[0].images[1]' is of no supported format" in answer.text) == (400, True)
    answer = post(service_of(), "/api/generate", {"prompt": "a", "system": "b", "images": [bad]})
    assert (answer.status_code, "'images[0]' is of no supported format" in answer.text) == (400, True)
    for fields in ({"raw": True}, {"suffix": "b"}):
        answer = post(service_of(), "/api/generate", {"prompt": "a", "images": [ENCODED]} | fields)
        assert (answer.status_code, "'images'" in answer.text) == (400, True), answer.text
    answer = post(Service(), "/api/chat", {"messages": [message]})
    assert (answer.status_code, "'messages[0].images[0]'" in answer.text) == (400, True), answer.text
    answer = post(Service(model={"chat_template": None}), "/api/generate", {"prompt": "a", "images": [ENCODED]})
    assert (answer.status_code, "'images'" in answer.text) == (400, True), answer.text


def results_of_routes():
    """Return the same call with the same result, as each interface writes it."""
    call = {"type": "function_call", "call_id": "0", "name": "look", "arguments": "{}"}
    output = [{"type": "input_text", "text": "Seen:"}, {"type": "input_image", "image_url": data_url(FILE)}]
    blocks = [{"type": "text", "text": "Seen:"}, {"type": "image", "source": SOURCE}]
    chat = chat_of([{"type": "text", "text": "Seen:"}, part()])
    ollama = [*chat[:2], {"role": "tool", "content": "Seen:", "images": [ENCODED]}]
    ollama[1] = ollama[1] | {"tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    return {
        "/v1/chat/completions": {"messages": chat},
        "/v1/responses": {
            "store": False,
            "input": ["Look.", call, {"type": "function_call_output", "call_id": "0", "output": output}],
        },
        "/v1/messages": {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "0", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "0", "content": blocks}]},
            ],
        },
        "/api/chat": {"stream": False, "messages": ollama},
    }


@pytest.mark.parametrize("template", [TEMPLATE, TEXT_OF_RESULTS], ids=["writes images", "writes text"])
@pytest.mark.parametrize("path", results_of_routes())
def test_an_image_in_a_result_is_seen(path, template):
    body = results_of_routes()[path]
    if path == "/v1/responses":
        body["input"][0] = {"role": "user", "content": "Look."}
    prompt_ids, digests = sent(service_of(template), path, body)
    assert len(set(digests)) == len(digests) == TILES
    text = text_of(prompt_ids)
    assert text.count(PLACEHOLDER) == TILES * NUM_ROWS
    assert "Seen:" in text
    if template == TEXT_OF_RESULTS:
        assert text.index("tool:Seen:<end_of_utterance><|im_start|>user:") < text.index(PLACEHOLDER)


def test_images_of_several_results_come_before_what_the_user_says_next():
    turns = chat_of([part(FILE), {"type": "text", "text": "one"}], [part(OTHER)], "three")
    spoken = [*turns, {"role": "user", "content": "Well?"}]
    prompt_ids, digests = sent(service_of(TEXT_OF_RESULTS), "/v1/chat/completions", {"messages": spoken})
    text = text_of(prompt_ids)
    assert len(set(digests)) == 2 * TILES
    assert text.index("tool:three") < text.index(PLACEHOLDER) < text.index("Well?")
    assert text.count("<|im_start|>user:") == 2
    alone = [shown(data_url(content))[0]["content"][:1] for content in (FILE, OTHER)]
    expected = [
        sent(service_of(), "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})[1]
        for content in alone
    ]
    assert digests == [*expected[0], *expected[1]]


def test_the_images_of_a_shortened_chat_are_those_of_its_messages():
    late = {"role": "tool", "tool_call_id": "0", "content": [part(OTHER)]}
    question = {"role": "user", "content": [part(FILE), {"type": "text", "text": "And this?"}]}
    long = {"role": "user", "content": "word " * 200}
    turns = [long, {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "0"}]}, question, late]
    whole = sent(service_of(), "/v1/chat/completions", {"messages": [question]})
    assert sent(service_of(), "/v1/chat/completions", {"messages": turns, "truncation": "auto"}) == whole


def test_only_the_user_and_tools_show_images():
    for role in ("system", "assistant"):
        messages = [{"role": role, "content": [part()]}, {"role": "user", "content": "a"}]
        answer = post(service_of(), "/v1/chat/completions", {"messages": messages})
        assert (answer.status_code, "of the user and results of tools" in answer.text) == (400, True)


def test_tokens_of_images_are_counted():
    messages = shown(data_url(FILE))
    prompt_ids, _ = sent(service_of(), "/v1/chat/completions", {"messages": messages})
    tokens = post(service_of(), "/tokenize", {"messages": messages}).json()
    assert (tokens["tokens"], tokens["count"]) == (list(prompt_ids), len(prompt_ids))
    rendered = post(service_of(), "/v1/chat/completions/render", {"messages": messages}).json()
    assert rendered["token_ids"] == list(prompt_ids)
    parts = [{"type": "input_image", "image_url": data_url(FILE)}, {"type": "input_text", "text": "What is it?"}]
    rendered = post(service_of(), "/v1/responses/render", {"input": [{"role": "user", "content": parts}]}).json()
    assert rendered["token_ids"] == list(prompt_ids)
    content = [{"type": "image", "source": SOURCE}, {"type": "text", "text": "What is it?"}]
    counted = post(service_of(), "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": content}]})
    assert counted.json() == {"input_tokens": len(prompt_ids)}


def test_images_are_counted_beyond_the_context():
    messages = shown(*[data_url(FILE)] * 20)
    assert post(service_of(), "/tokenize", {"messages": messages}).json()["count"] > 20 * TILES * NUM_ROWS
    assert IMAGE_ID in post(service_of(), "/tokenize", {"messages": messages}).json()["tokens"]


def test_a_model_of_text_leaves_out_images_of_results_and_tells():
    body = results_of_routes()["/v1/chat/completions"]
    answer = post(Service(), "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-levserve-ignored"] == "messages[].content[].image_url"


@pytest.mark.parametrize(
    "image",
    [
        {"type": "input_image", "image_url": data_url(FILE)},
        {"type": "input_image", "image_url": {"url": data_url(FILE)}, "detail": "auto"},
        {"type": "image", "source": SOURCE},
        {"type": "image", "source": SOURCE | {"data": data_url(FILE)}},
        {"type": "image", "data": ENCODED, "mimeType": "image/png"},
    ],
)
def test_a_chat_takes_images_as_other_interfaces_write_them(image):
    text = {"type": "text", "text": "What is it?"}
    chat = sent(service_of(), "/v1/chat/completions", {"messages": shown(data_url(FILE))})
    assert (
        sent(service_of(), "/v1/chat/completions", {"messages": [{"role": "user", "content": [image, text]}]}) == chat
    )


@pytest.mark.parametrize("detail", ["auto", "high", "low", "original", "ultra", "", None, 3])
def test_details_are_hints(detail):
    service = service_of()
    image = {"type": "image_url", "image_url": {"url": data_url(FILE), "detail": detail}}
    answer = post(service, "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]})
    assert answer.status_code == 200, answer.text
    assert len(service.engine.last.request.media) == (1 if detail == "low" else TILES)
    told = answer.headers.get("x-levserve-ignored")
    assert told == (None if detail in ("auto", "high", "low", "", None) else "messages[].content[].image_url.detail")
    part = {"type": "input_image", "image_url": data_url(FILE), "detail": detail}
    answer = post(service, "/v1/responses", {"input": [{"role": "user", "content": [part]}], "store": False})
    assert answer.status_code == 200, answer.text
    told = answer.headers.get("x-levserve-ignored")
    assert told == (None if detail in ("auto", "high", "low", "", None) else "input[].content[].detail")


def written_urls():
    """Return data URLs of the same file as browsers and tools write them."""
    safe = base64.urlsafe_b64encode(FILE).decode()
    lines = base64.encodebytes(FILE).decode()
    heads = [
        *("data:image/png;base64,", "DATA:IMAGE/PNG;BASE64,", "data:;base64,", "data:image/jpeg;base64,"),
        *("data:image/png;charset=utf-8;base64,", "data:image/png;name=a.png;base64,", "data:image/*;base64,"),
        *('data:image/png;name="a, b; c.png";base64,', "data:image/png;name=%C3%A4%20b.png;base64,"),
        *("data:image/png; base64,", "data: image/png;base64,", "data:image/png;base64 ,", " data:image/png;base64,"),
        *(
            "data:text/plain;base64,",
            "data:application/octet-stream;base64,",
            "data:undefined;base64,",
            "data:png;base64,",
        ),
        f"data:image/png;name={'a' * 2000}.png;base64,",
    ]
    contents = [
        *(lines, lines.replace("\n", "\r\n"), f"\n{ENCODED}\n", f" {ENCODED}", "\t".join(ENCODED), ENCODED.rstrip("=")),
        *(safe, safe.rstrip("="), urllib.parse.quote(ENCODED, safe=""), urllib.parse.quote(lines), f"{ENCODED}=="),
    ]
    return [*(f"{head}{ENCODED}" for head in heads), *(f"data:image/png;base64,{each}" for each in contents), ENCODED]


def test_an_image_is_read_as_browsers_and_tools_write_it():
    for length in range(4):
        assert read_data_url("data:;base64," + base64.b64encode(b"a" * length).decode(), "f") == b"a" * length
    for url in written_urls():
        assert read_data_url(url, "f") == FILE, url[:80]


@pytest.mark.parametrize(
    "url",
    ["", "data:", "data:image/png,AAAA", "data:image/png;base64,A", "data:;base64,Ä", "data:;base64,A*==", "AAAA"],
)
def test_what_is_no_image_is_refused(url):
    with pytest.raises((InvalidParameter, UnsupportedParameter)):
        read_data_url(url, "f")


def test_a_template_that_takes_no_parts_in_results_is_found():
    assert ChatTemplate(TEMPLATE, {}).writes_images_of_results(PLACEHOLDER)
    assert not ChatTemplate(TEXT_OF_RESULTS, {}).writes_images_of_results(PLACEHOLDER)
    refusing = (
        "{% for m in messages %}{% if m.content is not string %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    )
    assert not ChatTemplate(refusing, {}).writes_images_of_results(PLACEHOLDER)


def test_the_images_of_a_decision_are_counted_as_those_of_a_chat(monkeypatch):
    monkeypatch.setattr(test_decisions, "TOKENIZER", TOKENIZER)
    service = service_of(limits={"engine": test_decisions.LabelEngine()}, max_model_len=4096)
    image = {"type": "input_image", "image_url": data_url(FILE)}
    questions = [{"type": "predicate", "instructions": "It is a drawing."}] * 2
    body = {"input": [{"role": "user", "content": [image]}], "questions": questions}
    answer = post(service, "/v1/decisions", body)
    assert answer.status_code == 200, answer.text
    series = service.metrics.of_model(MODEL)
    assert series.value("levserve_images_total") == 1
    assert series.value("levserve_image_tokens_total") == TILES * NUM_ROWS
