"""The answers to a chat, from its messages to running sequences, for every interface that has chats."""

from collections.abc import Sequence
from typing import NamedTuple

from service.api.conversation import Options
from service.api.generation.admission import cache_salt_of, max_tokens_of, submit
from service.api.generation.answer_rules import AnswerRules, chat_rules
from service.api.generation.chat_prompt import Conversational, chat_prompt, conversation_of
from service.api.generation.images import made_prompt
from service.api.generation.streams import TextStreams
from service.api.http.call import Call
from service.api.served import ServedModel
from service.text.tokenizer import Tokenizer

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
        RequestError: as `conversation_of`, `see`, `make_prompt`, `chat_rules` and `submit`.
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
