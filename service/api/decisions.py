"""POST /v1/decisions: questions about an input, answered by the probabilities of their options.

Source: https://github.com/openai/openai-python/blob/main/src/openai/types/decision.py
"""

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import batched, takewhile
from typing import Annotated, Literal, NamedTuple, TypedDict

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.answers.generation import Usage
from service.api.conversation import Options
from service.api.dependencies import OpenCall
from service.api.generation.admission import cache_salt_of, max_tokens_of, priority_of
from service.api.generation.chat_prompt import conversation_of
from service.api.generation.decision_prompts import DecisionPrompt, decision_prompts
from service.api.generation.images import made_prompt
from service.api.generation.streams import TextRule, TextStreams
from service.api.http.call import Call
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.decisions import ChoiceQuestion, DecisionsRequest, Question, ScoreQuestion
from service.api.schema.token_ids import TokenIds
from service.api.served import ServedModel
from service.engine.limits import MAX_LOGPROBS
from service.engine.request import MAX_SEQUENCES, PlacedMedium, Request, Sampling
from service.engine.token_mask import pack_token_mask
from service.text.detokenizer import StopRule

router = APIRouter()

RULE = TextRule(StopRule(()))
MANY_OPTIONS = 1000  # whose answers take a thread to write


class PredicateAnswer(TypedDict):
    """How likely a statement is true."""

    type: Literal["predicate"]
    name: str | None
    probability: float


class ChoiceProbability(TypedDict):
    """How likely a choice is."""

    value: str | bool
    probability: float


class ChoiceAnswer(TypedDict):
    """The likeliest choice."""

    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: float
    """1 where one choice is certain, 0 where all are as likely: 1 less the entropy's share of the greatest."""
    probabilities: list[ChoiceProbability]


class LevelProbability(TypedDict):
    """How likely a level is."""

    label: str
    value: int
    """Its place in the order of the levels, from 0."""
    probability: float


class ScoreAnswer(TypedDict):
    """The expected level."""

    type: Literal["score"]
    name: str | None
    score: float
    """The mean of the levels' values by their probabilities."""
    confidence: float
    """As of a choice."""
    probabilities: list[LevelProbability]


class DecisionInputDetails(TypedDict):
    """Of the prompts' tokens."""

    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(TypedDict):
    """Of the answers' tokens."""

    reasoning_tokens: int


class DecisionUsage(TypedDict):
    """The tokens of all prompts, each with the input, and one for each time that probabilities were read."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class Decision(TypedDict):
    """The answer of POST /v1/decisions."""

    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    """In the order of the questions."""
    model: str
    usage: DecisionUsage


@router.post("/v1/decisions", tags=["generation"], responses=answers(Decision, *GENERATION_ERRORS))
async def create_decision(
    call: OpenCall,
    body: Annotated[DecisionsRequest, Depends(json_body(DecisionsRequest))],
) -> Response:
    """Answer questions about an input with the probabilities of their options.

    Each question is asked at the end of the input, and the probabilities are those that the model gives to labels of
    the options as the first token of its answer, without thinking. Nothing is generated, and no question depends on
    another.

    Deviations: no answer is a refusal; questions have no images of their own.

    Source: https://platform.openai.com/docs/api-reference/decisions/create
    """
    model = await call.generating(body.model)
    options = conversation_of(body, call.seal_key).options
    call.log_user(options.user)
    salt = cache_salt_of(call, options)
    asked, seen = await made_prompt(call, model, body, decision_prompts, cache_salt=salt)
    call.ignore(asked.ignored)
    for prompt in asked.prompts:
        max_tokens_of(call, model, options, prompt.ids, param="input", default=None)
    # The images come before the questions, so their places are the same in all prompts.
    numbers = range(0 if seen is None else len(seen.texts))
    media = await seen.placed(asked.prompts[0].ids, numbers) if seen is not None and numbers else ()
    readings = [reading for prompt in asked.prompts for reading in _readings(prompt)]
    read = await _read(call, model, options, readings, media)

    def write() -> JSONResponse:
        of_questions = _of_questions(asked.prompts, read.logprobs)
        found = [_answer(question, p) for question, p in zip(body.questions, of_questions, strict=True)]
        return JSONResponse(Decision(answers=found, model=body.model, usage=read.usage))

    is_long = sum(len(prompt.label_ids) for prompt in asked.prompts) > MANY_OPTIONS
    return await call.run_in_thread(write) if is_long else write()


class _Reading(NamedTuple):
    """A prompt, and some of the tokens that may come next; the first option's is always among them."""

    prompt_ids: TokenIds
    label_ids: Sequence[int]


class _Read(NamedTuple):
    """The log-probabilities of the tokens of each reading, by their ids, and what reading them took."""

    logprobs: Sequence[Mapping[int, float]]
    usage: DecisionUsage


def _readings(prompt: DecisionPrompt) -> Iterator[_Reading]:
    """Yield a prompt with as many of its labels at a time as a step returns."""
    first, *others = prompt.label_ids
    for some in batched(others, MAX_LOGPROBS - 1):
        yield _Reading(prompt.ids, (first, *some))


async def _read(
    call: Call,
    model: ServedModel,
    options: Options,
    readings: Sequence[_Reading],
    media: tuple[PlacedMedium, ...],
) -> _Read:
    """Read the model's log-probabilities; the first prompt alone, so that the others find the input in the cache.

    Raises:
        PriorityNotAllowed: the request's key may not overtake others.
        Overloaded, Draining, EngineError, QueueTimeout: the engine does not answer.
        ClientDisconnected, DeadlineExceeded: the client or the time is gone.
    """
    answer_id = f"decision-{uuid.uuid4().hex}"
    common = Request(
        "",
        (),
        1,
        priority=priority_of(call, options),
        flow=call.key.name,
        weight=call.key.weight,
        cache_salt=cache_salt_of(call, options),
        shared_len=_shared_len(readings) if model.keeps_states else 0,
        media=media,
        adapter=model.adapter,
        queue_deadline=call.wait_in_queue(sum(len(reading.prompt_ids) for reading in readings)),
    )
    requests = [
        replace(
            common,
            id=f"{answer_id}-{number}",
            prompt_ids=tuple(reading.prompt_ids),
            sampling=_sampling(reading.label_ids),
            queue_deadline=common.queue_deadline if number == 0 else None,
        )
        for number, reading in enumerate(readings)
    ]
    logprobs: list[Mapping[int, float]] = []
    usages: list[Usage] = []
    for some in (requests[:1], *batched(requests[1:], MAX_SEQUENCES)):
        with TextStreams(call, model, answer_id, some, RULE, per_prompt=1) as streams:
            for deltas in await call.unless_disconnected(streams.collect()):
                [entry] = [entry for delta in deltas for entry in delta.logprobs]
                logprobs.append(dict(entry.top))
            usages.append(streams.usage())
    usage = _usage(usages)
    tokens = usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]
    call.log_fields.update(zip(("prompt_tokens", "completion_tokens", "cached_tokens"), tokens, strict=True))
    return _Read(logprobs, usage)


def _sampling(label_ids: Sequence[int]) -> Sampling:
    """Return options with which a step returns the log-probabilities of these tokens."""
    mask = pack_token_mask(label_ids).tobytes()
    return Sampling(temperature=0.0, scores=True, num_logprobs=len(label_ids), allowed_mask=mask)


def _shared_len(readings: Sequence[_Reading]) -> int:
    """Return how many leading tokens the prompts of different questions share."""
    first, last = readings[0].prompt_ids, readings[-1].prompt_ids
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


def _usage(usages: Sequence[Usage]) -> DecisionUsage:
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    completion_tokens = sum(usage["completion_tokens"] for usage in usages)
    cached_tokens = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _of_questions(
    prompts: Sequence[DecisionPrompt], logprobs: Sequence[Mapping[int, float]]
) -> Iterator[Sequence[float]]:
    """Yield the probabilities of each question's options.

    Those of one reading are relative to each other; the first option, which is part of each, relates the readings.
    """
    remaining = iter(logprobs)
    for prompt in prompts:
        first, *_ = prompt.label_ids
        relative: dict[int, float] = {}
        for _ in _readings(prompt):
            some = next(remaining)
            relative |= {label_id: logprob - some[first] for label_id, logprob in some.items()}
        highest = max(relative.values())
        shares = [math.exp(relative[label_id] - highest) for label_id in prompt.label_ids]
        yield [share / math.fsum(shares) for share in shares]


def _answer(question: Question, probabilities: Sequence[float]) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    if isinstance(question, ChoiceQuestion):
        values = [choice.value for choice in question.choices]
        likeliest = max(range(len(values)), key=probabilities.__getitem__)
        return {
            "type": "choice",
            "name": question.name,
            "choice": values[likeliest],
            "confidence": _confidence(probabilities),
            "probabilities": [
                {"value": value, "probability": p} for value, p in zip(values, probabilities, strict=True)
            ],
        }
    if isinstance(question, ScoreQuestion):
        labels = [level.label for level in question.levels]
        return {
            "type": "score",
            "name": question.name,
            "score": math.fsum(value * p for value, p in enumerate(probabilities)),
            "confidence": _confidence(probabilities),
            "probabilities": [
                {"label": label, "value": value, "probability": p}
                for value, (label, p) in enumerate(zip(labels, probabilities, strict=True))
            ],
        }
    return {"type": "predicate", "name": question.name, "probability": probabilities[0]}


def _confidence(probabilities: Sequence[float]) -> float:
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    return min(1.0, max(0.0, 1 - entropy / math.log(len(probabilities))))
