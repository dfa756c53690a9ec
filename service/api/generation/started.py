"""The answers to chats and the continuations of texts, from what is asked to running sequences, for every interface."""

from collections.abc import Sequence
from typing import NamedTuple

from service.api.conversation import Options
from service.api.generation.admission import cache_salt_of, max_tokens_of, submit
from service.api.generation.answer_rules import AnswerRules, chat_rules, completion_rules
from service.api.generation.chat_prompt import Conversational, chat_prompt, conversation_of
from service.api.generation.completion_prompts import Continuing, completion_prompts, infill_for
from service.api.generation.images import made_prompt
from service.api.generation.streams import TextStreams
from service.api.http.call import Call
from service.api.schema.token_ids import TokenIds
from service.api.served import ServedModel
from service.text.tokenizer import Tokenizer

# Tokenizing a shorter text, or checking fewer ids, takes less time than passing it to a thread.
SHORT_PROMPT_CHARS = 2048
MOST_CHARS = 16  # of a token of a prediction, by which a longer one is cut before it is encoded


class StartedChat(NamedTuple):
    """A chat whose answers are being generated."""

    options: Options
    prompt_ids: Sequence[int]
    streams: TextStreams
    rules: AnswerRules
    tokenizer: Tokenizer


async def start_chat(call: Call, model: ServedModel, body: Conversational, *, prefix: str) -> StartedChat:
    """Render a chat and submit its sequences.

    Raises:
        RequestError: as `conversation_of`, `made_prompt`, `chat_rules` and `submit`.
    """
    conversation = conversation_of(body, call.seal_key)
    options, at = conversation.options, conversation.at
    call.ignore(conversation.ignored)
    prompt, seen = await made_prompt(call, model, body, chat_prompt, cache_salt=cache_salt_of(call, options))
    call.ignore(prompt.ignored)
    rules = await chat_rules(call, model, conversation, prompt)
    media = ()
    if seen is not None and prompt.images:
        max_tokens_of(call, model, options, prompt.ids, param=at, default=None)  # before a pixel is decoded
        media = await seen.placed(prompt.ids, prompt.images)
    prediction = await _predicted(call, model, options.prediction)
    streams = submit(
        call,
        model,
        options,
        [prompt.ids],
        rules,
        prefix=prefix,
        param=at,
        default_max_tokens=None,
        shared_len=prompt.shared_len,
        media=media,
        prediction=prediction,
    )
    return StartedChat(options, prompt.ids, streams, rules, model.tokenizer)


class StartedCompletion(NamedTuple):
    """Texts whose continuations are being generated."""

    options: Options
    prompts: Sequence[TokenIds]
    streams: TextStreams
    rules: AnswerRules


async def start_completion(
    call: Call, model: ServedModel, body: Continuing, *, prefix: str, default_max_tokens: int | None = None
) -> StartedCompletion:
    """Tokenize texts and submit their continuations.

    Raises:
        RequestError: as `infill_for`, `completion_prompts`, `completion_rules` and `submit`.
    """
    asked = body.continuation()
    options, infill = asked.options, infill_for(asked, model.tokenizer)
    if call.has_long_body or sum(map(len, (*asked.prompts, asked.suffix))) > SHORT_PROMPT_CHARS:
        prompts = await call.make_prompt(completion_prompts, body, model)
    else:
        prompts = completion_prompts(body, model.prompt_model)
    rules = await completion_rules(call, model, options)
    streams = submit(
        call,
        model,
        options,
        prompts,
        rules,
        prefix=prefix,
        param="prompt",
        default_max_tokens=default_max_tokens,
        more_stop_ids=frozenset() if infill is None else infill.end_ids,
    )
    return StartedCompletion(options, prompts, streams, rules)


async def _predicted(call: Call, model: ServedModel, prediction: str | None) -> tuple[int, ...]:
    """Return the tokens of a chat's prediction, as many as an answer can have.

    Raises:
        InvalidParameter: it has a lone surrogate.
        DeadlineExceeded: the request's time is over.
    """
    if prediction is None:
        return ()
    if not model.num_drafts:
        call.ignore(["prediction"])
        return ()
    most = model.max_model_len
    text = prediction[: MOST_CHARS * most]

    def encode() -> tuple[int, ...]:
        return tuple(model.tokenizer.encode(text, add_special_tokens=False, param="prediction")[:most])

    return await call.run_in_thread(encode)
