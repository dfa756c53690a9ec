"""Images in chats: read from the request, measured, decoded, and put in their places; the engine is scripted."""

import asyncio
import base64
import json
import zlib

import pytest

from service.api.served import Vision
from service.engine.request import FinishReason
from service.engine.shapes import RowShapes
from service.media.budget import read_budget
from service.media.longest_edge import read_longest_edge
from service.media.tiles import read_square, read_tiler
from service.models.families.mistral3 import PIXEL_DEVIATION, PIXEL_MEAN
from service.text.chat_template import ChatTemplate
from service.text.images import BlockText, LineText, RowText, TileText
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import MODEL, Service
from tests.api.work.test_media import worker_ids
from tests.media.image_files import drawing, image_file, png
from tests.parity.vision_cases import GEMMA_IMAGE_SIZE, GEMMA_ROWS, IMAGE_SIZE, NUM_ROWS
from tests.processes import is_running
from tests.sighted import (
    GEMMA4_PREPROCESSOR,
    GEMMA4_SPECIAL,
    GEMMA4_TEMPLATE,
    GEMMA_PREPROCESSOR,
    GEMMA_SPECIAL,
    GEMMA_TEMPLATE,
    MISTRAL_PREPROCESSOR,
    MISTRAL_SPECIAL,
    MISTRAL_TEMPLATE,
    PLACEHOLDER,
    PREPROCESSOR,
    TEMPLATE,
    data_url,
    gemma4_tokenizer,
    gemma_tokenizer,
    mistral_tokenizer,
    shown,
    sighted_tokenizer,
)

TOKENIZER = Tokenizer(sighted_tokenizer())
IMAGE_ID = TOKENIZER.backend.token_to_id(PLACEHOLDER)
# Of a model whose template takes plain text, too.
LENIENT = (
    "<|im_start|>{% for message in messages %}{% set content = message['content'] %}{{message['role'] | capitalize}}"
    "{{message['name']}}{% if content is not string and content[0]['type'] == 'image' %}:{% else %}{{': '}}{% endif %}"
    "{% if content is string %}{{content}}{% else %}{% for line in content %}"
    "{% if line.type == 'text' %}{{line.text}}{% else %}<image>{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n"
    "{% endfor %}Assistant:"
)


def vision():
    tiler = read_tiler("test", PREPROCESSOR, tile_size=IMAGE_SIZE, tile_rows=NUM_ROWS)
    shapes = RowShapes(64, NUM_ROWS, (NUM_ROWS,), 1, (IMAGE_SIZE, IMAGE_SIZE, 3))
    return Vision(tiler, TileText(PLACEHOLDER, NUM_ROWS), IMAGE_ID, shapes)


@pytest.fixture(params=[TEMPLATE, LENIENT], ids=["parts", "lenient"])
def service(request):
    made = service_of(request.param)
    yield made
    made.fastapi.state.context.media.end()


def service_of(template=TEMPLATE, limits=None, **model):
    facts = {
        "tokenizer": TOKENIZER,
        "vocab_size": TOKENIZER.vocab_size,
        "chat_template": ChatTemplate(template, {}),
        "vision": vision(),
        "max_model_len": 256,
    }
    return Service(model=facts | model, **(limits or {}))


def ask(service, messages, **fields):
    return asyncio.run(service.post("/v1/chat/completions", {"model": MODEL, "messages": messages} | fields))


def refusal(service, messages, **fields):
    """Return the parameter and the message of a 400."""
    answer = ask(service, messages, **fields)
    assert answer.status_code in (400, 413), answer.text
    assert not service.engine.streams
    return answer.json()["error"]["param"], answer.json()["error"]["message"]


def test_an_image_takes_the_places_that_the_prompt_has_for_its_tiles(service):
    answer = ask(service, shown(data_url(), text="What?"))
    assert answer.status_code == 200, answer.text
    sent = service.engine.last.request
    own = PLACEHOLDER * NUM_ROWS
    tiles = "".join(
        "".join(f"<fake_token_around_image><row_{row}_col_{column}>{own}" for column in (1, 2)) + "\n" for row in (1, 2)
    )
    text = (
        f"<|im_start|>User:{tiles}\n<fake_token_around_image><global-img>{own}<fake_token_around_image>"
        "What?<end_of_utterance>\nAssistant:"
    )
    assert sent.prompt_ids == tuple(TOKENIZER.backend.encode(text, add_special_tokens=False).ids)
    places = [position for position, token_id in enumerate(sent.prompt_ids) if token_id == IMAGE_ID]
    assert [place for placed in sent.media for place in range(placed.start, placed.end)] == places
    assert len({placed.medium.digest for placed in sent.media}) == 5
    assert {placed.medium.features.shape for placed in sent.media} == {(IMAGE_SIZE, IMAGE_SIZE, 3)}
    assert answer.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 5 * NUM_ROWS
    series = service.metrics.of_model(MODEL)
    assert series.value("levserve_images_total") == 1
    assert series.value("levserve_image_tokens_total") == 5 * NUM_ROWS


def mistral_service():
    tokenizer, pixels = Tokenizer(mistral_tokenizer()), (PIXEL_MEAN, PIXEL_DEVIATION)
    row, line_end, end = MISTRAL_SPECIAL
    sizes = {"patch_size": 4, "merge_size": 2, "padded_rows": (64,)}
    scaler = read_longest_edge("test", MISTRAL_PREPROCESSOR, **sizes, pixels=pixels)
    shapes = RowShapes(9, 64, (64,), 1, (4, 48))
    sees = Vision(scaler, LineText(row, line_end, end), tokenizer.backend.token_to_id(row), shapes)
    made = service_of(MISTRAL_TEMPLATE, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, vision=sees)
    return made, tokenizer


def test_mistrals_images_are_lines_that_each_end_with_a_token():
    service, tokenizer = mistral_service()
    answer = ask(service, shown(data_url(), data_url(image_file("JPEG", drawing(9, 60)), "image/jpeg"), text="What?"))
    assert answer.status_code == 200, answer.text
    first = "[IMG_BREAK]".join(["[IMG]" * 5] * 3) + "[IMG_END]"  # 37 x 23 pixels
    second = "[IMG_BREAK]".join(["[IMG]" * 2] * 8) + "[IMG_END]"
    sent = service.engine.last.request
    text = f"[INST]{first}{second}What?[/INST]"
    assert sent.prompt_ids == tuple(tokenizer.backend.encode(text, add_special_tokens=False).ids)
    assert [(placed.num_rows, placed.line, placed.end - placed.start) for placed in sent.media] == [
        (15, 5, 17),
        (16, 2, 23),
    ]
    assert [sent.prompt_ids[placed.end] for placed in sent.media] == [tokenizer.backend.token_to_id("[IMG_END]")] * 2
    assert answer.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 31
    service.fastapi.state.context.media.end()


def test_no_text_has_the_token_of_mistrals_images():
    message = refusal(mistral_service()[0], [{"role": "user", "content": "a [IMG] b"}])[1]
    assert "'[IMG]' stands for an image" in message


def gemma4_service():
    tokenizer = Tokenizer(gemma4_tokenizer())
    begin, end, row = GEMMA4_SPECIAL
    budget = read_budget("test", GEMMA4_PREPROCESSOR, patch_size=4, merge_size=3, padded_rows=(70,))
    sees = Vision(
        budget,
        RowText(row, begin, end),
        tokenizer.backend.token_to_id(row),
        RowShapes(9, 70, (70,), 1, (9, 48), is_whole=True),
    )
    made = service_of(GEMMA4_TEMPLATE, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, vision=sees)
    return made, tokenizer


def test_gemma_4s_images_are_rows_between_their_first_and_their_last_token():
    service, tokenizer = gemma4_service()
    other = {"type": "image_url", "image_url": {"url": data_url(), "detail": "low"}}
    content = [{"type": "text", "text": "What?"}, other, {"type": "text", "text": "And here?"}]
    answer = ask(service, [{"role": "user", "content": content}])
    assert answer.status_code == 200, answer.text
    sent = service.engine.last.request
    block = f"\n\n<|image>{'<|image|>' * 60}<image|>\n\n"  # 37 x 23 pixels are 10 x 6 squares of 12
    text = f"<|turn>user\nWhat?{block}And here?<turn|>\n<|turn>model\n"
    assert sent.prompt_ids == tuple(tokenizer.backend.encode(text, add_special_tokens=False).ids)
    assert [(placed.num_rows, placed.grid, placed.line) for placed in sent.media] == [(60, None, None)]
    service.fastapi.state.context.media.end()


def test_sound_in_a_chat_is_refused_by_name():
    service, _ = gemma4_service()
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert "input_audio" in refusal(service, [{"role": "user", "content": [sound]}])[1]
    service.fastapi.state.context.media.end()


def gemma_service():
    tokenizer = Tokenizer(gemma_tokenizer())
    begin, end, row = GEMMA_SPECIAL
    square = read_square("test", GEMMA_PREPROCESSOR, tile_size=GEMMA_IMAGE_SIZE, tile_rows=GEMMA_ROWS)
    shapes = RowShapes(9, GEMMA_ROWS, (GEMMA_ROWS,), 1, (GEMMA_IMAGE_SIZE, GEMMA_IMAGE_SIZE, 3), is_whole=True)
    sees = Vision(square, BlockText(begin, row, GEMMA_ROWS, end), tokenizer.backend.token_to_id(row), shapes)
    return service_of(GEMMA_TEMPLATE, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, vision=sees), tokenizer


def test_gemmas_images_are_blocks_between_their_first_and_their_last_token():
    service, tokenizer = gemma_service()
    answer = ask(service, shown(data_url(), data_url(image_file("JPEG"), "image/jpeg"), text="What?"))
    assert answer.status_code == 200, answer.text
    block = f"\n\n<start_of_image>{'<image_soft_token>' * GEMMA_ROWS}<end_of_image>\n\n"
    text = f"<start_of_turn>user\n{block}{block}What?<end_of_utterance>\n<start_of_turn>model\n"
    sent = service.engine.last.request
    assert sent.prompt_ids == tuple(tokenizer.backend.encode(text, add_special_tokens=False).ids)
    assert [placed.num_rows for placed in sent.media] == [GEMMA_ROWS] * 2
    assert all(sent.prompt_ids[placed.start - 1] + 1 == sent.prompt_ids[placed.end] for placed in sent.media)
    assert answer.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 2 * GEMMA_ROWS
    service.fastapi.state.context.media.end()


@pytest.mark.parametrize("token", ["<start_of_image>", "<image_soft_token>"])
def test_no_text_has_a_token_of_gemmas_images(token):
    message = refusal(gemma_service()[0], [{"role": "user", "content": f"a {token} b"}])[1]
    assert f"'{token}' stands for an image" in message


def test_several_images_and_turns_and_coarse_ones_come_in_their_order(service):
    coarse = {"type": "image_url", "image_url": {"url": data_url(), "detail": "low"}}
    other = {"type": "image_url", "image_url": data_url(image_file("JPEG", drawing(60, 60)), "image/jpeg")}
    messages = [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": [{"type": "text", "text": "First:"}, coarse, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "A drawing."},
        {"role": "user", "content": [other, coarse]},
    ]
    assert ask(service, messages, n=2, stream=False).status_code == 200
    first, second = [stream.request for stream in service.engine.streams]
    assert first.media == second.media
    digests = [placed.medium.digest for placed in first.media]
    assert len(digests) == 1 + 5 + 1
    assert digests[0] == digests[-1] not in digests[1:-1]


def test_text_alone_is_read_as_before(service):
    assert ask(service, [{"role": "user", "content": "Hello"}]).status_code == 200
    sent = service.engine.last.request
    text = "<|im_start|>User: Hello<end_of_utterance>\nAssistant:"
    assert sent.prompt_ids == tuple(TOKENIZER.backend.encode(text, add_special_tokens=False).ids)
    assert sent.media == ()


def test_a_long_body_is_read_in_its_process():
    service = service_of()
    noise = image_file("PNG", drawing(190, 190).effect_spread(90), compress_level=0)
    assert len(noise) > 100_000
    answer = ask(service, shown(data_url(noise), data_url()))
    assert answer.status_code == 200, answer.text
    assert len(service.engine.last.request.media) == 10
    assert service.process.num_starts == 1
    service.process.end()


def test_the_oldest_images_are_left_out_with_their_turns():
    service = service_of()
    turns = [*shown(data_url(), data_url()), {"role": "assistant", "content": "No."}] * 3
    last = shown(data_url(image_file("PNG", drawing(1, 1))), text="And this?")
    assert ask(service, [*turns, *last]).json()["error"]["code"] == "context_length_exceeded"
    answer = ask(service, [*turns, *last], truncation="auto")
    assert answer.status_code == 200, answer.text
    media = service.engine.last.request.media
    assert len(media) == 5 * 5
    assert media[-1].medium.digest not in {placed.medium.digest for placed in media[:20]}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.com/a.png", "'https:'"),
        ("http://169.254.169.254/", "'http:'"),
        ("file:///etc/passwd", "'file:'"),
        ("//example.com/a.png", "no URL"),
        ("/etc/passwd", "no URL"),
        ("", "no URL"),
        ("data:image/png,AAAA", "must begin"),
        ("data:text/html;base64,AAAA", "no supported format"),
        ("data:image/png;base64" + ";a=b" * 250_000 + ",AAAA", "must begin"),
        ("data:image/png;base64,AA AA", "no supported format"),
        ("data:image/png;base64,AAAAA", "base64"),
        ("data:image/png;base64,AA==AA==", "base64"),
        ("data:image/png;base64,A", "base64"),
        ("data:image/png;base64,%%%%", "base64"),
        ("data:image/png;base64,ÄÄÄÄ", "base64"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64,aGVsbG8", "no supported format"),
    ],
)
def test_an_image_that_is_not_in_the_request_is_refused(url, reason):
    service = service_of()
    param, message = refusal(service, shown(url))
    assert param == "messages[0].content[0].image_url"
    assert reason in message
    assert len(message) < 400
    service.fastapi.state.context.media.end()


def test_a_type_that_lies_and_missing_padding_are_no_matter():
    service = service_of()
    encoded = base64.b64encode(image_file("JPEG", drawing(10, 11))).decode().rstrip("=")
    assert ask(service, shown(f"data:image/webp;base64,{encoded}")).status_code == 200


def test_requests_with_another_salt_share_no_decoded_image():
    service = service_of()
    media = service.fastapi.state.context.media

    def num_processes(**fields):
        before = worker_ids()
        assert ask(service, shown(data_url()), **fields).status_code == 200
        started = worker_ids() - before
        media.end()
        return len(started)

    assert [num_processes(cache_salt=salt) for salt in ("a", "a", "b", "b")] == [1, 0, 1, 0]
    assert [num_processes(), num_processes()] == [1, 0]


def test_no_text_of_a_request_stands_for_an_image(service):
    sneaky = f"a {PLACEHOLDER} b"
    assert refusal(service, [{"role": "user", "content": sneaky}])[0] == "messages[0].content[0].text"
    assert refusal(service, shown(data_url(), text=sneaky))[0] == "messages[0].content[1].text"
    hidden = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": sneaky}]
    assert "1 places for images, and the request 0" in refusal(service_of(LENIENT), hidden)[1]


def test_only_users_show_images(service):
    for role in ("system", "assistant"):
        messages = [{"role": role, "content": shown(data_url())[0]["content"]}, {"role": "user", "content": "a"}]
        param, message = refusal(service, messages)
        assert (param, "of the user" in message) == ("messages[0].content[0].type", True)


def test_more_images_than_the_context_holds_are_refused_undecoded():
    service = service_of()
    bad = "data:image/png;base64,AAAA"
    param, message = refusal(service, shown(*[bad] * 1000))
    assert (param, "context length is 256" in message) == ("messages", True)
    assert ask(service, shown(*[data_url()] * 9)).json()["error"]["code"] == "context_length_exceeded"
    service.fastapi.state.context.media.end()


def test_a_model_that_reads_text_alone_says_so():
    param, message = refusal(Service(), shown(data_url()))
    assert param == "messages[0].content[0].type"
    assert f"'{MODEL}' reads only text" in message


def test_a_part_lacks_what_its_type_needs(service):
    for part, missing in (({"type": "image_url"}, "image_url"), ({"type": "text"}, "text")):
        param, _ = refusal(service, [{"role": "user", "content": [part]}])
        assert param == f"messages[0].content[0].{missing}"


def test_models_say_that_they_see(service):
    async def models():
        async with service.client() as client:
            return json.loads((await client.get("/v1/models")).text)["data"][0]

    assert asyncio.run(models())["modalities"] == {"input": ["text", "image"], "output": ["text"]}


def test_responses_and_messages_show_what_a_chat_shows():
    service = service_of()
    content = image_file("PNG")
    assert ask(service, shown(data_url(content), text="What?")).status_code == 200
    encoded = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(content).decode()}
    parts = [{"type": "input_image", "image_url": data_url(content)}, {"type": "input_text", "text": "What?"}]
    blocks = [{"type": "image", "source": encoded}, {"type": "text", "text": "What?"}]
    for path, body in (
        ("/v1/responses", {"input": [{"role": "user", "content": parts}], "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": blocks}], "max_tokens": 9}),
    ):
        answer = asyncio.run(service.post(path, {"model": MODEL} | body))
        assert answer.status_code == 200, answer.text
    sent = [stream.request for stream in service.engine.streams]
    assert len({request.prompt_ids for request in sent}) == 1
    assert len({tuple(placed.medium.digest for placed in request.media) for request in sent}) == 1
    assert len(sent[0].media) == 5


def test_turns_of_a_user_in_a_row_are_one_message_with_its_images():
    service = service_of()
    encoded = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image_file("PNG")).decode()}
    image = {"type": "image", "source": encoded}
    turns = [{"role": "user", "content": "One:"}, {"role": "user", "content": [image, {"type": "text", "text": "two"}]}]
    answer = asyncio.run(service.post("/v1/messages", {"model": MODEL, "messages": turns, "max_tokens": 9}))
    assert answer.status_code == 200, answer.text
    text = TOKENIZER.backend.decode(list(service.engine.last.request.prompt_ids), skip_special_tokens=True)
    assert text.startswith("User: One:\n")


def test_an_uploaded_file_is_no_image():
    part = {"type": "input_image", "file_id": "file-1"}
    body = {"model": MODEL, "input": [{"role": "user", "content": [part]}]}
    answer = asyncio.run(service_of().post("/v1/responses", body))
    assert answer.json()["error"]["param"] == "input[0].content[0].file_id"


def test_addresses_are_fetched_where_the_operator_allows_it():
    class Fetched:
        async def fetch(self, url, param, arrived):
            self.asked = (url, param)
            return image_file("PNG")

    remote = Fetched()
    service = Service(
        model={
            "tokenizer": TOKENIZER,
            "vocab_size": TOKENIZER.vocab_size,
            "chat_template": ChatTemplate(TEMPLATE, {}),
            "vision": vision(),
            "max_model_len": 256,
        },
        remote_images=remote,
    )
    assert ask(service, shown("https://example.com/a.png")).status_code == 200
    assert remote.asked == ("https://example.com/a.png", "messages[0].content[0].image_url")
    assert "'http:'" in ask(service, shown("http://example.com/a.png")).text


def test_answers_about_an_image_come_in_streams_and_several():
    service = service_of()
    service.engine.script = [*TOKENIZER.encode("Hello world", add_special_tokens=False), FinishReason.STOP]
    whole = ask(service, shown(data_url()), n=3).json()
    assert {choice["message"]["content"] for choice in whole["choices"]} == {"Hello world"}
    assert whole["usage"]["prompt_tokens_details"]["image_tokens"] == 5 * NUM_ROWS
    streamed = ask(service, shown(data_url()), n=2, stream=True, stream_options={"include_usage": True})
    events = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    texts = {0: "", 1: ""}
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert set(texts.values()) == {"Hello world"}
    assert events[-1]["usage"]["prompt_tokens_details"]["image_tokens"] == 5 * NUM_ROWS
    digests = [[placed.medium.digest for placed in stream.request.media] for stream in service.engine.streams]
    assert digests == [digests[0]] * 5


def test_answers_about_an_image_may_be_structured():
    service = service_of()
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    format_ = {"type": "json_schema", "json_schema": {"name": "seen", "schema": schema}}
    assert ask(service, shown(data_url()), response_format=format_).status_code == 200
    sent = service.engine.last.request
    assert (sent.constraint is not None, len(sent.media)) == (True, 5)


def test_tools_may_be_called_about_an_image():
    answer = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
    script = [*TOKENIZER.encode(answer, add_special_tokens=False), FinishReason.STOP]
    service = service_of("{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE)
    service.engine.script = script
    parameters = {"type": "object", "properties": {"colour": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "paint", "parameters": parameters}}
    choice = ask(service, shown(data_url()), tools=[tool], max_tokens=100).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "paint", "arguments": '{"colour": "red"}'}
    assert choice["finish_reason"] == "tool_calls"
    assert len(service.engine.last.request.media) == 5


def leave_during(service, url, has_begun):
    """Disconnect from a chat that shows an image once a part of the work has begun; nothing may be submitted."""

    async def leave():
        asking = asyncio.ensure_future(service.post("/v1/chat/completions", {"model": MODEL, "messages": shown(url)}))
        while not has_begun():
            assert not asking.done(), asking.result().text
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(leave())
    assert not service.engine.streams


def test_a_client_may_leave_while_an_image_is_fetched():
    class Never:
        begun = ended = False

        async def fetch(self, url, param, arrived):
            self.begun = True
            try:
                await asyncio.Event().wait()
            finally:
                self.ended = True

    remote = Never()
    service = service_of(limits={"remote_images": remote})
    leave_during(service, "https://example.com/a.png", lambda: remote.begun)
    assert remote.ended


def test_a_client_may_leave_while_an_image_is_decoded():
    service = service_of()
    before = worker_ids()
    slow = data_url(png(10_000, 4_900, zlib.compress(bytes(30_001 * 4_900), 9)))
    started = set()

    def has_begun():
        started.update(worker_ids() - before)
        return len(started) > 1  # one reads the body, the other the image

    leave_during(service, slow, has_begun)
    assert sum(map(is_running, started)) <= 1
    assert ask(service, shown(data_url())).status_code == 200
    service.fastapi.state.context.media.end()
    service.process.end()
