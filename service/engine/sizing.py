"""How many pages and how much context: from the configuration and the device's memory, before any weight is there."""

import math

import jax

from service.engine.logprobs import PROMPT_SLICE_TOKENS
from service.engine.shapes import EngineShapes
from service.errors import DoesNotFit, SettingsError
from service.models.interface import CacheLayout, PagedDecoder

# A context shorter than this serves nobody; rather refuse to start.
SMALLEST_CONTEXT = 256  # tokens


def fit_engine(
    model: PagedDecoder,
    *,
    memory_bytes: int,
    weights_bytes: int,
    max_num_seqs: int,
    page_size: int,
    max_prefill_tokens: int,
    max_model_len: int | None,
) -> EngineShapes:
    """Choose the engine's sizes.

    Args:
        model: for the bytes of a page and the longest context.
        memory_bytes: what weights, pages and work space may take together.
        weights_bytes: what the weights take.
        max_num_seqs: slots.
        page_size: token positions of a page.
        max_prefill_tokens: tokens of one prefill step.
        max_model_len: the context that the operator asks for; None for the model's own, as far as memory reaches.

    Raises:
        SettingsError: the operator asks for more context than the model was made for.
        DoesNotFit: the weights and one sequence's pages need more than there is.
    """
    if max_model_len is not None and max_model_len > model.context_len:
        raise SettingsError(
            "MAX_MODEL_LEN", f"is {max_model_len} tokens; the model was made for {model.context_len} at most."
        )
    context = max_model_len or model.context_len
    page_bytes = _page_bytes(model, page_size)
    free_bytes = memory_bytes - weights_bytes - _work_bytes(model, max_num_seqs, max_prefill_tokens)
    num_pages = max(free_bytes, 0) // page_bytes
    shortest = min(context if max_model_len else SMALLEST_CONTEXT, context)
    if num_pages * page_size < shortest:
        raise DoesNotFit(
            needed_bytes=memory_bytes - free_bytes + math.ceil(shortest / page_size) * page_bytes,
            available_bytes=memory_bytes,
            remedy="Set MAX_MODEL_LEN or MAX_NUM_SEQS lower, DTYPE to bfloat16, or take a larger device.",
        )
    context = min(context, num_pages * page_size)
    pages_in_use = max_num_seqs * math.ceil(context / page_size)  # more would never be written
    return EngineShapes(
        num_slots=max_num_seqs,
        num_pages=min(num_pages, pages_in_use),
        page_size=page_size,
        max_context=context,
        max_prefill_tokens=max_prefill_tokens,
    )


def _page_bytes(model: PagedDecoder, page_size: int) -> int:
    layout = CacheLayout(num_pages=1, page_size=page_size, slot_sizes=(1,), context_sizes=(page_size,))
    one_page = jax.eval_shape(lambda: model.initial_cache(layout))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one_page))


def _work_bytes(model: PagedDecoder, max_num_seqs: int, max_prefill_tokens: int) -> int:
    return (
        4  # float32
        * model.vocab_size
        * (max_num_seqs + PROMPT_SLICE_TOKENS)  # logits of a decode step, and of a slice of a prompt
        * 5  # the logits, what drawing makes of them, and the counts of tokens
    ) + (
        64
        * 1024  # activations of one token, generously: 16 arrays of 1024 float32
        * (max_prefill_tokens + max_num_seqs)
    )
