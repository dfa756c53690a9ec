"""The prompts of a completion to token ids."""

from array import array
from collections.abc import Sequence
from typing import Protocol

from service.api.conversation import Continuation
from service.api.schema.token_ids import TokenIds
from service.errors import InvalidParameter, UnsupportedParameter
from service.text.infill import Infill, infill_of
from service.text.prompt_model import PromptModel
from service.text.tokenizer import Tokenizer


class Continuing(Protocol):
    """A body that asks for the continuation of texts."""

    def continuation(self) -> Continuation:
        """Return what it asks for."""
        ...


def infill_for(asked: Continuation, tokenizer: Tokenizer) -> Infill | None:
    """Return how a model's prompts mark a gap; None if the request has none.

    Raises:
        UnsupportedParameter: the model has no tokens for that.
    """
    if not asked.suffix:
        return None
    if (infill := infill_of(tokenizer)) is None:
        raise UnsupportedParameter("suffix", "the model's tokenizer has no tokens around a gap. Send only 'prompt'.")
    return infill


def completion_prompts(body: Continuing, model: PromptModel) -> list[TokenIds]:
    """Return the token ids of each prompt.

    Raises:
        InvalidParameter: a token id is not the model's, or a text has a lone surrogate.
        UnsupportedParameter: the model's prompts have no gaps.
        ContextLengthExceeded: a text is longer than the context.
    """
    asked = body.continuation()
    infill = infill_for(asked, model.tokenizer)
    params = ["prompt"] if len(asked.prompts) == 1 else [f"prompt[{i}]" for i in range(len(asked.prompts))]
    return [
        array("i", _encode(prompt, model, param, asked, infill))
        for prompt, param in zip(asked.prompts, params, strict=True)
    ]


def _encode(
    prompt: str | Sequence[int], model: PromptModel, param: str, asked: Continuation, infill: Infill | None
) -> list[int]:
    # Defends against T8.
    if prompt and not isinstance(prompt, str) and not (min(prompt) >= 0 and max(prompt) < model.vocab_size):
        i = next(i for i, token_id in enumerate(prompt) if not 0 <= token_id < model.vocab_size)
        raise InvalidParameter(
            f"Invalid '{param}[{i}]': a token id is at least 0 and less than {model.vocab_size}.", param=f"{param}[{i}]"
        )
    options = asked.options
    max_model_len = None if options.truncate_prompt_tokens else model.max_model_len
    if infill is not None:
        return infill.prompt_ids(model.tokenizer, prompt, asked.suffix, param=param, max_model_len=max_model_len)
    if isinstance(prompt, str):
        ids = model.tokenizer.encode(prompt, add_special_tokens=True, param=param, max_model_len=max_model_len)
        return options.truncated(ids, model.max_model_len)
    return options.truncated(list(prompt), model.max_model_len)
