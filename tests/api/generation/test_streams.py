"""Several sequences of one request: side by side, by index, all or none."""

import json

import pytest

from service.engine.loop import NON_FINITE_LOGITS
from service.engine.request import FinishReason
from service.errors import EngineError, NonFiniteLogits
from tests.api.scripted_engine import END, STALL, TOKENIZER, Service, tokens

pytestmark = pytest.mark.anyio


def events(response):
    frames = [frame[6:] for frame in response.text.split("\n\n") if frame]
    return [json.loads(frame) for frame in frames if frame != "[DONE]"]


async def test_each_choice_has_a_seed_of_its_own_and_the_first_has_the_requests():
    seeds = []
    for fields in ({"n": 4, "seed": 7}, {"n": 4, "seed": 7}, {"n": 1, "seed": 7}, {"n": 4}):
        service = Service()
        await service.chat(**fields)
        seeds.append([stream.request.sampling.seed for stream in service.engine.streams])
    assert seeds[0] == seeds[1]
    assert seeds[0][0] == seeds[2][0] == 7
    assert all(len(set(own)) == len(own) and all(0 <= seed < 2**63 for seed in own) for own in seeds)
    assert seeds[3][0] != 7


async def test_a_prompt_in_a_list_has_the_seed_that_it_has_alone():
    service = Service()
    await service.complete(["a", "b"], n=2, seed=5)
    seeds = [stream.request.sampling.seed for stream in service.engine.streams]
    assert seeds[:2] == seeds[2:]


async def test_ids_are_the_requests_own_and_the_usage_is_the_sum():
    service = Service()
    answer = (await service.complete(["Once", "Twice upon"], n=2)).json()
    requests = [stream.request for stream in service.engine.streams]
    assert len({request.id for request in requests}) == 4
    assert all(request.id.startswith(answer["id"]) for request in requests)
    num_tokens = 4 * len(tokens("Hello world"))
    num_prompt = len(requests[0].prompt_ids) + len(requests[2].prompt_ids)
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("ask", [Service.chat, Service.complete])
async def test_every_chunk_can_have_the_token_counts_so_far(ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = events(await ask(Service(), stream=True, stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in got]
    assert counts == sorted(counts)
    assert counts[0] <= 1
    assert counts[-1] == len(tokens("Hello world"))
    without = events(await ask(Service(), stream=True, stream_options={"include_usage": True}))
    assert [event["usage"] for event in without[:-1]] == [None] * (len(without) - 1)
    assert without[-1]["usage"] == got[-1]["usage"]


async def test_streams_of_several_choices_are_interleaved():
    service = Service()
    service.engine.pace_s = 0.001
    got = events(await service.chat(n=3, stream=True))
    order = [event["choices"][0]["index"] for event in got]
    assert order != sorted(order)
    for index in range(3):
        own = [event["choices"][0] for event in got if event["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello world"
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


async def test_when_the_engine_cannot_take_all_it_keeps_none():
    service = Service([STALL])
    service.engine.max_streams = 2
    response = await service.chat(n=3)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "server_overloaded")
    assert [stream.is_aborted for stream in service.engine.streams] == [True, True]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_of_one_ends_all(stream):
    service = Service([*tokens("Hello"), EngineError("boom")])
    response = await service.chat(n=2, stream=stream)
    assert '"engine_error"' in response.text.replace(" ", "")
    assert all(stream.is_aborted for stream in service.engine.streams)


async def test_non_finite_logits_are_an_error_of_their_own():
    response = await Service([NonFiniteLogits(NON_FINITE_LOGITS)]).chat()
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (500, "broken_scores", "server_error")
    assert "NaN or infinite" in error["message"]


async def test_a_stop_string_ends_its_own_choice():
    service = Service([*tokens("One. STOP Two."), FinishReason.STOP])
    answer = (await service.chat(n=2, stop="STOP")).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["One. "] * 2


@pytest.mark.parametrize("path", ["chat", "complete"])
async def test_the_stop_string_stays_if_that_is_requested(path):
    service = Service([*tokens("One. STOP Two."), FinishReason.STOP])
    answer = (await getattr(service, path)(stop="STOP", include_stop_str_in_output=True)).json()
    [choice] = answer["choices"]
    assert (choice.get("text") or choice["message"]["content"], choice["finish_reason"]) == ("One. STOP", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_came_with_the_one_that_completes_a_stop_string_are_dropped(stream):
    kept = tokens("One. STOP")
    service = Service([[*kept, *tokens(" Two. Three.")], tokens(" Four."), FinishReason.STOP])
    fields = {"stop": " STOP", "logprobs": 0, "return_token_ids": True, "stream": stream}
    response = await service.complete(**fields, **({"stream_options": {"include_usage": True}} if stream else {}))
    answers = events(response) if stream else [response.json()]
    choices = [choice for answer in answers for choice in answer["choices"]]
    assert "".join(choice["text"] for choice in choices) == "One."
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == kept
    assert sum(len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"]) == len(kept)
    assert answers[-1]["usage"]["completion_tokens"] == len(kept)
    assert choices[-1]["finish_reason"] == "stop"
    assert service.engine.last.is_aborted


async def test_a_part_of_a_character_is_written_as_its_bytes():
    service = Service([*tokens("é🌍"), FinishReason.STOP])
    logprobs = (await service.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    *written, stop = logprobs["tokens"]
    assert stop == "<|end|>"
    assert len(written) == len(tokens("é🌍"))
    assert all(name in ("é", "🌍") or name.startswith("bytes:\\x") for name in written)
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"][-2] <= 1
    assert [list(top.values()) for top in logprobs["top_logprobs"]] == [[-0.25]] * len(logprobs["tokens"])
    content = (await service.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "é🌍"
    assert all(entry["top_logprobs"] == [] for entry in content)


async def test_a_streams_parts_have_every_token_even_where_no_character_is_complete():
    expected = tokens("é🌍")
    got = events(await Service([*expected, FinishReason.STOP]).chat(logprobs=True, top_logprobs=1, stream=True))
    entries = [e for event in got if (own := event["choices"][0]["logprobs"]) for e in own["content"]]
    assert len(entries) == len(expected)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [[*tokens("Hello world"), FinishReason.STOP], [FinishReason.STOP]])
async def test_the_stop_token_is_the_last_of_the_logprobs_after_an_echo_too(script, stream):
    """Clients that score a prompt with one token take that token for granted, whatever it is."""
    prompt = tokens("Once upon")
    response = await Service(script).complete(prompt, echo=True, logprobs=1, stream=stream)
    choices = [choice for answer in (events(response) if stream else [response.json()]) for choice in answer["choices"]]
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    names = [name for part in parts for name in part["tokens"]]
    expected = [*prompt, *script[:-1], END]
    assert names == [TOKENIZER.token_bytes_of(token_id).decode() for token_id in expected]
    assert [p for part in parts for p in part["token_logprobs"]] == [None] + [-0.25] * (len(expected) - 1)
    text = "".join(choice["text"] for choice in choices)
    assert text == TOKENIZER.decode(expected)
    assert parts[-1]["text_offset"][-1] == len(text)
    assert choices[-1]["finish_reason"] == "stop"


async def test_a_stop_token_behind_a_stop_string_is_not_part_of_the_answer():
    service = Service([*tokens("One. STOP Two."), FinishReason.STOP])
    logprobs = (await service.complete(stop="STOP", logprobs=0)).json()["choices"][0]["logprobs"]
    assert "<|end|>" not in logprobs["tokens"]


async def test_a_prompt_is_echoed_with_and_without_logprobs():
    plain = (await Service().complete("Once ", echo=True)).json()["choices"][0]
    assert (plain["text"], plain["logprobs"]) == ("Once Hello world", None)
    of_ids = (await Service().complete(tokens("Once "), echo=True)).json()["choices"][0]
    assert of_ids["text"] == "Once Hello world"
    service = Service()
    await service.complete(echo=True)
    assert service.engine.last.request.num_prompt_logprobs is None
