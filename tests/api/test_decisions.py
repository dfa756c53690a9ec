"""Questions about an input: what the model is asked, and how the probabilities of labels become answers."""

import math
from itertools import batched

import numpy as np
import pytest

from service.engine.limits import MAX_LOGPROBS
from service.engine.request import FinishReason, TokenEvent, TokenLogprobs
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, ScriptedEngine, ScriptedStream, Service, tokens
from tests.text.formats.templates import HARMONY, LLAMA_CHAT

pytestmark = pytest.mark.anyio

PREDICATE = {"type": "predicate", "instructions": "It is red."}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
SCORE = {"type": "score", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]}
IMAGE = {"type": "input_image", "image_url": "data:,"}


def text(words):
    return {"type": "input_text", "text": words}


def logit(token_id):
    return (token_id * 37 % 11) / 4


class LabelEngine(ScriptedEngine):
    """An engine with fixed logits, which returns as many log-probabilities as a step can."""

    def __init__(self):
        super().__init__([])

    def submit(self, request):
        bits = np.unpackbits(np.frombuffer(request.sampling.allowed_mask, np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: TOKENIZER.vocab_size]).tolist()
        assert request.sampling.num_logprobs == len(allowed) <= MAX_LOGPROBS
        total = math.log(math.fsum(math.exp(logit(token_id)) for token_id in allowed))
        top = sorted(((token_id, logit(token_id) - total) for token_id in allowed), key=lambda entry: -entry[1])
        event = TokenEvent((top[0][0],), FinishReason.LENGTH, logprobs=(TokenLogprobs(top[0][1], 1, tuple(top)),))
        self.streams.append(ScriptedStream(request, [event], 0))
        return self.streams[-1]


class Decisions(Service):
    def __init__(self, **model):
        super().__init__(engine=LabelEngine(), model={"max_model_len": 4096} | model)

    async def decide(self, *questions, **fields):
        body = {"model": MODEL, "input": "The ball is red.", "questions": list(questions)}
        return await self.post("/v1/decisions", body | fields)

    @property
    def prompts(self):
        return [
            TOKENIZER.backend.decode(list(stream.request.prompt_ids), skip_special_tokens=False)
            for stream in self.engine.streams
        ]


def shares(labels):
    weights = [math.exp(logit(tokens(label)[-1])) for label in labels]
    return [weight / math.fsum(weights) for weight in weights]


async def test_a_question_stands_behind_the_input_and_is_answered_where_the_template_writes_the_assistants_words():
    service = Decisions()
    choice = CHOICE | {"choices": [{"value": "a", "description": "first"}, {"value": False}]}
    answer = await service.decide(PREDICATE, choice, SCORE)
    assert answer.status_code == 200, answer.text
    asked = (
        "<|turn|>user:The ball is red.\n\n{}\n\nReply with the label of one option and nothing else.<|turn|>assistant:"
    )
    assert service.prompts == [
        asked.format("It is red.\n\n" + "A: this is true\nB: this is not true"),
        asked.format("Which?\n\nA: a: first\nB: false"),
        asked.format("How much?\n\n0: low\n1: high"),
    ]


async def test_probabilities_are_shares_of_the_labels_alone():
    service = Decisions()
    answer = (await service.decide(PREDICATE | {"name": "p"}, CHOICE, SCORE)).json()
    predicate, choice, score = answer["answers"]
    assert predicate == {"type": "predicate", "name": "p", "probability": pytest.approx(shares("AB")[0])}
    assert choice["probabilities"] == [
        {"value": value, "probability": pytest.approx(p)} for value, p in zip("ab", shares("AB"), strict=True)
    ]
    assert choice["name"] is None
    assert choice["choice"] == "ab"[int(np.argmax(shares("AB")))]
    assert score["score"] == pytest.approx(shares("01")[1])
    entropy = -sum(p * math.log(p) for p in shares("AB"))
    assert choice["confidence"] == pytest.approx(1 - entropy / math.log(2))
    assert answer["usage"] == {
        "input_tokens": sum(len(stream.request.prompt_ids) for stream in service.engine.streams),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer["usage"]["input_tokens"] + 3,
    }


@pytest.mark.parametrize("count", [2, 19, 20, 21, 39, 40, 62])
async def test_more_options_than_a_step_returns_are_read_in_several(count):
    service = Decisions()
    answer = (await service.decide(CHOICE | {"choices": [{"value": f"v{i}"} for i in range(count)]})).json()
    labels = [chr(c) for c in (*range(65, 91), *range(97, 123), *range(48, 58))][:count]
    found = answer["answers"][0]["probabilities"]
    assert [entry["value"] for entry in found] == [f"v{i}" for i in range(count)]
    assert [entry["probability"] for entry in found] == pytest.approx(shares(labels))
    assert len(service.engine.streams) == len(list(batched(range(count - 1), MAX_LOGPROBS - 1)))


async def test_more_options_than_the_tokenizer_has_labels_are_refused_by_name():
    answer = await Decisions().decide(PREDICATE, CHOICE | {"choices": [{"value": f"v{i}"} for i in range(255)]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "questions[1]")
    assert "255 options" in error["message"]
    assert "labels for 6" in error["message"]


async def test_many_questions_are_answered_in_order():
    service = Decisions()
    questions = [SCORE | {"name": f"q{i}", "levels": SCORE["levels"] * (1 + i % 5)} for i in range(150)]
    found = (await service.decide(*questions)).json()["answers"]
    assert [answer["name"] for answer in found] == [f"q{i}" for i in range(150)]
    assert [len(answer["probabilities"]) for answer in found] == [2 * (1 + i % 5) for i in range(150)]


async def test_the_input_may_be_a_conversation_with_json_and_calls():
    service = Decisions()
    items = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": [text("Look: "), {"type": "input_json", "data": [{"a": [1, None]}]}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I do."}], "phase": "final_answer"},
    ]  # fmt: skip
    fields = {"safety_identifier": "u1", "prompt_cache_key": "k", "cache_salt": "s", "priority": 3}
    answer = await service.decide(PREDICATE, input=items, **fields)
    assert answer.status_code == 200, answer.text
    [prompt] = service.prompts
    assert prompt.startswith(
        '<|turn|>system:Judge.<|turn|>user:Look: [{"a":[1,null]}]<|turn|>assistant:I do.<|turn|>user:It is red.'
    )
    assert service.engine.last.request.priority == 3
    assert "prompt_cache_key" not in answer.headers.get("x-levserve-ignored", "")


async def test_thinking_and_channels_are_passed_over():
    for source, end in (
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>"),
        (LLAMA_CHAT, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n"
            "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>"
            "assistant\n<think>\n{% endif %}",
            "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
    ):
        service = Decisions(chat_template=ChatTemplate(source, TOKENIZER.special_tokens))
        answer = await service.decide(PREDICATE)
        assert answer.status_code == 200, answer.text
        assert service.prompts[0].endswith(end)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [PREDICATE] * 401}, "questions"),
        ({"questions": None}, "questions"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"questions": [{"type": "essay", "instructions": "Write."}]}, "questions[0].type"),
        ({"questions": [{"instructions": "Write."}]}, "questions[0].type"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
        ({"questions": [{"type": "predicate", "instructions": []}]}, "questions[0].instructions"),
        ({"questions": [PREDICATE, {"type": "choice", "instructions": "a"}]}, "questions[1].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": str(i)} for i in range(256)]}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}, {"value": "a"}]}]}, "questions[0].choices[1].value"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}, {"value": 1}]}]}, "questions[0].choices[1].value"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}, {}]}]}, "questions[0].choices[1].value"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}] * 11}]}, "questions[0].levels"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}, {"label": ""}]}]}, "questions[0].levels[1].label"),
        ({"questions": [PREDICATE | {"instructions": [IMAGE]}]}, "questions[0].instructions[0].type"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": 7}]}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": "a" * 5000}, "input"),
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_is_refused_by_name(fields, param):
    service = Decisions()
    body = {"model": MODEL, "input": "x", "questions": [PREDICATE]} | fields
    answer = await service.post("/v1/decisions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert service.engine.streams == []


async def test_a_long_body_is_answered_too():
    service = Decisions(max_model_len=200_000)
    answer = await service.decide(PREDICATE, CHOICE, input="red " * 20_000)
    assert answer.status_code == 200, answer.text
    assert [len(prompt) > 80_000 for prompt in service.prompts] == [True, True]


@pytest.mark.parametrize("kind", [True, [], {}, 1, None])
async def test_a_question_whose_type_is_no_text_has_none(kind):
    answer = await Decisions().decide(PREDICATE, PREDICATE | {"type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "questions[1].type"
