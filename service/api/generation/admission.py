"""A checked body and its prompts to running sequences: limits, defaults, and the engine's requests."""

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from service.api.conversation import Options
from service.api.generation.answer_rules import AnswerRules
from service.api.generation.streams import TextRule, TextStreams
from service.api.http.call import ApiContext, Call
from service.api.served import ServedModel
from service.engine.limits import MAX_STOP_IDS
from service.engine.request import BACKGROUND_PRIORITY, PlacedMedium, Request, Sampling
from service.engine.token_mask import pack_token_mask
from service.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    PriorityNotAllowed,
    UnsupportedParameter,
)
from service.text.detokenizer import StopRule


def submit(
    call: Call,
    model: ServedModel,
    options: Options,
    prompts: Sequence[Sequence[int]],
    rules: AnswerRules,
    *,
    prefix: str,
    param: str,
    default_max_tokens: int | None,
    more_stop_ids: frozenset[int] = frozenset(),
    shared_len: int = 0,
    media: tuple[PlacedMedium, ...] = (),
    prediction: tuple[int, ...] = (),
) -> TextStreams:
    """Submit the sequences of a request to the engine.

    Args:
        call: the HTTP request.
        model: the model that answers.
        options: the request's.
        prompts: token ids to continue, each `options.n` times.
        rules: the rules of all answers.
        prefix: the beginning of the answer's id, such as `chatcmpl-`.
        param: the field that the prompts came from.
        default_max_tokens: if neither the request nor DEFAULT_MAX_TOKENS sets one; None for the rest of the context.
        more_stop_ids: tokens that end this kind of answer, besides the model's and the request's own.
        shared_len: leading tokens of the prompts that later requests are likely to have, too.
        media: what takes the places of tokens of the prompt, which is one then.
        prediction: tokens that are expected in the answers.

    Raises:
        PriorityNotAllowed: the request's key may not overtake others.
        InvalidParameter: a prompt is empty, or a field does not suit the model or the prompt.
        UnsupportedParameter: the tokenizer's special tokens have no text to keep.
        ContextLengthExceeded: the context has no room for the tokens requested.
        Overloaded, Draining, EngineStopped: the engine does not accept all sequences now.
        QueueTimeout: the request has waited too long already.
    """
    options.check_token_ids(model.vocab_size)
    call.log_user(options.user)
    call.log_fields["stream"] = options.stream
    call.api.metrics.of_model(model.series_name).request_params_n.observe(options.n)
    stop_ids = _stop_ids(options, model, more_stop_ids)
    limit = partial(max_tokens_of, call, model, options, param=param, default=default_max_tokens)
    limits = list(map(limit, prompts))
    priority, cache_salt = priority_of(call, options), cache_salt_of(call, options)
    text_rule, sampling = _text_rule(options, model, rules), sampling_of(options, model, call.api)
    deadline = call.wait_in_queue(options.n * sum(map(len, prompts)))
    answer_id, random_seed = f"{prefix}{uuid.uuid4().hex}", secrets.randbits(63)
    choices = product(zip(map(tuple, prompts), limits, strict=True), range(options.n))
    requests = [
        Request(
            f"{answer_id}-{number}",
            prompt_ids,
            max_tokens,
            replace(sampling, seed=options.seed_for(index, random_seed)),
            stop_ids,
            priority=priority,
            flow=call.key.name,
            weight=call.key.weight,
            cache_salt=cache_salt,
            shared_len=shared_len,
            num_prompt_logprobs=options.num_prompt_logprobs,
            media=media,
            adapter=model.adapter,
            constraint=None if rules.constraint is None else rules.constraint.matcher(stop_ids),
            prediction=prediction,
            queue_deadline=deadline if number == 0 else None,  # with which the request begins
        )
        for number, ((prompt_ids, max_tokens), index) in enumerate(choices)
    ]
    return TextStreams(call, model, answer_id, requests, text_rule, per_prompt=options.n)


def priority_of(call: Call, options: Options) -> int:
    """Return the priority in the engine.

    Raises:
        PriorityNotAllowed: the request's key may not overtake others.
    """
    if options.priority < 0 and not call.key.can_prioritize:
        raise PriorityNotAllowed
    return options.priority + (BACKGROUND_PRIORITY if call.is_background else 0)


def _text_rule(options: Options, model: ServedModel, rules: AnswerRules) -> TextRule:
    """Return how the tokens of the answers become text.

    Raises:
        UnsupportedParameter: the tokenizer's special tokens have no text to keep.
    """
    shown_ids = rules.shown_ids
    if not options.skip_special_tokens:
        if model.tokenizer.token_bytes is None:
            raise UnsupportedParameter(
                "skip_special_tokens", "this model's tokens have no text of their own. Leave it out."
            )
        shown_ids |= model.tokenizer.special_ids
    # Answers name, as vLLM's do, the stop tokens of the request, except those that end any text.
    own_stop_ids = frozenset(options.stop_token_ids) - (frozenset() if options.ignore_eos else model.stop_ids)
    return TextRule(
        StopRule(tuple(options.stop), options.include_stop_str_in_output, own_stop_ids),
        shown_ids,
        rules.reader,
        None if rules.text_grammar is None else rules.text_grammar.end_check,
        scores_only=options.max_tokens == 0,
    )


def cache_salt_of(call: Call, options: Options) -> bytes:
    """Return a salt that requests share if they have the same API key and the same `cache_salt`."""
    # Defends against T23.
    key = call.cache_salt
    if options.cache_salt is None:
        return key
    return hashlib.sha256(key + b"\0" + options.cache_salt.encode(errors="surrogatepass")).digest()


def max_tokens_of(
    call: Call,
    model: ServedModel,
    options: Options,
    prompt_ids: Sequence[int],
    *,
    param: str,
    default: int | None,
) -> int:
    """Return how many tokens an answer to a prompt may have: what the request asks for, as far as there is room.

    Args:
        call: the HTTP request.
        model: the model that answers.
        options: the request's, of which a limit of 0 is for only scores.
        prompt_ids: the prompt.
        param: the field that it came from.
        default: if neither the request nor DEFAULT_MAX_TOKENS sets a limit; None for the rest of the context.

    Raises:
        InvalidParameter: the prompt is empty, or the limit is less than `min_tokens`.
        ContextLengthExceeded: the context has no room for a single token.
    """
    if not prompt_ids:
        raise InvalidParameter(f"Invalid '{param}': it has no token.", param=param)
    limit = options.max_tokens
    if limit == 0:  # the engine computes the scores of a prompt as it samples a token, which is dropped
        limit = 1
    room = model.max_model_len - len(prompt_ids)
    if room < 1:
        raise ContextLengthExceeded(
            prompt_tokens=len(prompt_ids), max_tokens=limit or 1, max_model_len=model.max_model_len, param=param
        )
    default = model.operator_defaults.max_tokens or call.api.default_max_tokens or default
    max_tokens = min(limit or default or room, room)
    if (options.max_tokens or 0) > max_tokens:
        call.ignore([options.max_tokens_at])
    if options.min_tokens > max_tokens:
        message = f"'min_tokens' is {options.min_tokens}, but the completion has {max_tokens} tokens at most."
        raise InvalidParameter(message, param="min_tokens")
    return max_tokens


def _stop_ids(options: Options, model: ServedModel, more: frozenset[int]) -> frozenset[int]:
    own = frozenset[int]() if options.ignore_eos else model.stop_ids | more
    stop_ids = own | frozenset(options.stop_token_ids)
    if options.min_tokens and len(stop_ids) > MAX_STOP_IDS:
        message = f"'min_tokens' can suppress {MAX_STOP_IDS} stop tokens; this request has {len(stop_ids)}."
        raise InvalidParameter(message, param="min_tokens")
    if options.min_tokens and options.allowed_token_ids is not None and stop_ids.issuperset(options.allowed_token_ids):
        message = (
            "'allowed_token_ids' has only stop tokens, which 'min_tokens' suppresses, so no token could be sampled."
        )
        raise InvalidParameter(message, param="allowed_token_ids")
    return stop_ids


def sampling_of(options: Options, model: ServedModel, api: ApiContext) -> Sampling:
    """Return the request's options; where it has none, the operator's, then the checkpoint's, then OpenAI's.

    Of the operator's, those of this model come before those of all models.
    """
    own, author = model.operator_defaults, model.defaults
    mask = None if options.allowed_token_ids is None else pack_token_mask(options.allowed_token_ids).tobytes()
    return Sampling(
        temperature=float(
            _first(options.temperature, own.temperature, api.default_temperature, author.temperature, 1.0)
        ),
        top_p=float(_first(options.top_p, own.top_p, author.top_p, 1.0)),
        top_k=max(0, int(_first(options.top_k, own.top_k, author.top_k, 0))),
        min_p=float(_first(options.min_p, own.min_p, author.min_p, 0.0)),
        repetition_penalty=float(
            _first(options.repetition_penalty, own.repetition_penalty, author.repetition_penalty, 1.0)
        ),
        presence_penalty=float(options.presence_penalty),
        frequency_penalty=float(options.frequency_penalty),
        logit_bias=options.logit_bias,
        min_tokens=options.min_tokens,
        num_logprobs=options.num_logprobs,
        allowed_mask=mask,
    )


def _first[T](*options: T | None) -> T:
    return next(option for option in options if option is not None)
