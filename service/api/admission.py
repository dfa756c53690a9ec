"""A checked body and its prompt to a running generation: limits, defaults, and the engine's own request."""

import secrets
import uuid
from collections.abc import Callable, Sequence

import anyio.to_thread

from service.api.dependencies import ApiContext, Exchange, ServedModel
from service.api.generation import Generation, token_budget
from service.api.schema import INT64_MAX, GenerationRequest
from service.engine.request import Request, Sampling
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
    prompt_ids: Sequence[int],
    *,
    prefix: str,
    param: str,
    default_max_tokens: int | None,
) -> Generation:
    """Submit a request to the engine.

    Args:
        exchange: whom to answer.
        body: what was asked.
        prompt_ids: the prompt.
        prefix: of the id, `chatcmpl` or `cmpl`.
        param: the field that the prompt came from.
        default_max_tokens: when neither the request nor DEFAULT_MAX_TOKENS says; None for the rest of the context.

    Raises:
        InvalidParameter: the prompt is empty.
        ContextLengthExceeded: the context has no room for what was asked.
        Overloaded, Draining, EngineStopped: the engine takes no request now.
    """
    if not prompt_ids:
        raise InvalidParameter(f"Invalid '{param}': it has no token.", param=param)
    if body.user is not None:
        exchange.facts["user"] = "".join(c if c.isprintable() else "?" for c in body.user[:MAX_LOGGED_CHARS])
    max_tokens = token_budget(
        prompt_tokens=len(prompt_ids),
        asked=body.asked_max_tokens,
        default=exchange.context.default_max_tokens or default_max_tokens,
        limit_tokens=exchange.model.max_model_len,
        param=param,
    )
    stop_ids = frozenset[int]() if body.ignore_eos else exchange.model.stop_ids
    sampling = _sampling(body, exchange.model, exchange.context)
    request = Request(f"{prefix}-{uuid.uuid4().hex}", tuple(prompt_ids), max_tokens, sampling, stop_ids)
    return Generation(exchange, request, body.stop)


def _sampling(body: GenerationRequest, model: ServedModel, context: ApiContext) -> Sampling:
    """Return the request's own wishes, else the operator's, else the checkpoint's, else OpenAI's."""
    temperatures = (body.temperature, context.default_temperature, model.defaults.temperature, 1.0)
    top_ps = (body.top_p, model.defaults.top_p, 1.0)
    return Sampling(
        temperature=float(next(value for value in temperatures if value is not None)),
        top_p=float(next(value for value in top_ps if value is not None)),
        seed=secrets.randbits(63) if body.seed is None else body.seed & INT64_MAX,
    )
