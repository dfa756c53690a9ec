"""A checked body and its prompt to a running generation: limits, defaults, and the engine's own request."""

import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio.to_thread

from service.api.dependencies import ApiContext, Exchange, ServedModel
from service.api.generation.choices import Choices
from service.api.generation.generation import token_budget
from service.api.schema.generation import GenerationRequest
from service.engine.request import MAX_STOP_IDS, Request, Sampling
from service.errors import InvalidParameter

MAX_LOGGED_CHARS = 128


async def off_the_loop[T](exchange: Exchange, work: Callable[[], T]) -> T:
    """Run what may take long (tokenizing, a template) in a thread, so that other requests go on.

    Raises:
        DeadlineExceeded: the request's time is over; the thread ends by its own limits.
    """
    return await exchange.deadline.within(
        anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=exchange.context.text_threads)
    )


def start(
    exchange: Exchange,
    body: GenerationRequest,
    prompts: Sequence[Sequence[int]],
    *,
    prefix: str,
    param: str,
    default_max_tokens: int | None,
) -> Choices:
    """Submit the sequences of a request to the engine.

    Args:
        exchange: whom to answer.
        body: what was asked.
        prompts: what to continue; each `body.n` times.
        prefix: of the id, `chatcmpl` or `cmpl`.
        param: the field that the prompts came from.
        default_max_tokens: when neither the request nor DEFAULT_MAX_TOKENS says; None for the rest of the context.

    Raises:
        InvalidParameter: a prompt is empty, or a field does not suit the model or the prompt.
        ContextLengthExceeded: the context has no room for what was asked.
        Overloaded, Draining, EngineStopped: the engine does not take all of it now.
    """
    model = exchange.model
    body.check_token_ids(model.vocab_size)
    if body.user is not None:
        exchange.facts["user"] = "".join(c if c.isprintable() else "?" for c in body.user[:MAX_LOGGED_CHARS])
    answer_id = f"{prefix}-{uuid.uuid4().hex}"
    stop_ids = _stop_ids(body, model)
    sampling = _sampling(body, model, exchange.context)
    drawn_seed = secrets.randbits(63)
    requests: list[Request] = []
    for prompt_ids in prompts:
        max_tokens = _max_tokens(exchange, body, prompt_ids, param, default_max_tokens)
        for index in range(body.n):
            own = replace(sampling, seed=body.seed_for(index, drawn_seed))
            request_id = f"{answer_id}-{len(requests)}"
            prompt = tuple(prompt_ids)
            requests.append(
                Request(
                    request_id,
                    prompt,
                    max_tokens,
                    own,
                    stop_ids,
                    priority=body.priority,
                    cache_salt=exchange.cache_salt,
                    num_prompt_logprobs=body.num_prompt_logprobs,
                )
            )
    return Choices(exchange, answer_id, requests, body.stop, per_prompt=body.n)


def _max_tokens(
    exchange: Exchange, body: GenerationRequest, prompt_ids: Sequence[int], param: str, default: int | None
) -> int:
    if not prompt_ids:
        raise InvalidParameter(f"Invalid '{param}': it has no token.", param=param)
    max_tokens = token_budget(
        prompt_tokens=len(prompt_ids),
        asked=body.requested_max_tokens,
        default=exchange.context.default_max_tokens or default,
        limit_tokens=exchange.model.max_model_len,
        param=param,
    )
    if body.min_tokens > max_tokens:
        message = f"'min_tokens' is {body.min_tokens}, but the completion has {max_tokens} tokens at most."
        raise InvalidParameter(message, param="min_tokens")
    return max_tokens


def _stop_ids(body: GenerationRequest, model: ServedModel) -> frozenset[int]:
    own = frozenset[int]() if body.ignore_eos else model.stop_ids
    stop_ids = own | frozenset(body.stop_token_ids)
    if body.min_tokens and len(stop_ids) > MAX_STOP_IDS:
        message = f"'min_tokens' can hold back {MAX_STOP_IDS} stop tokens; this request has {len(stop_ids)}."
        raise InvalidParameter(message, param="min_tokens")
    if body.min_tokens and body.allowed_token_ids is not None and stop_ids.issuperset(body.allowed_token_ids):
        message = "'allowed_token_ids' has stop tokens only, which 'min_tokens' holds back, so no token could come."
        raise InvalidParameter(message, param="allowed_token_ids")
    return stop_ids


def _sampling(body: GenerationRequest, model: ServedModel, context: ApiContext) -> Sampling:
    """Return the request's own wishes, else the operator's, else the checkpoint's, else OpenAI's."""
    author = model.defaults
    return Sampling(
        temperature=float(_first(body.temperature, context.default_temperature, author.temperature, 1.0)),
        top_p=float(_first(body.top_p, author.top_p, 1.0)),
        top_k=max(0, int(_first(body.top_k, author.top_k, 0))),
        min_p=float(_first(body.min_p, author.min_p, 0.0)),
        repetition_penalty=float(_first(body.repetition_penalty, author.repetition_penalty, 1.0)),
        presence_penalty=float(body.presence_penalty),
        frequency_penalty=float(body.frequency_penalty),
        logit_bias=body.logit_bias,
        min_tokens=body.min_tokens,
        num_logprobs=body.num_logprobs,
        allowed_ids=None if body.allowed_token_ids is None else frozenset(body.allowed_token_ids),
    )


def _first[T](*wishes: T | None) -> T:
    return next(wish for wish in wishes if wish is not None)
