"""Prompts with a gap to fill, in the formats of models that were trained on them, known by the tokens that they use.

Source: https://github.com/QwenLM/Qwen2.5-Coder (fill in the middle), https://huggingface.co/bigcode/starcoder,
https://github.com/deepseek-ai/DeepSeek-Coder (code insertion), https://github.com/meta-llama/codellama
(infilling_prompt_tokens, encode_infilling), https://github.com/mistralai/mistral-common (encode_fim)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.text.tokenizer import Tokenizer

MARK = "☺"


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """How a family marks the text before a gap, the text after it, and the beginning of what fills it."""

    before: str  # the names of tokens
    after: str
    middle: str | None  # None: what fills the gap follows the text before it, which comes last
    ends: tuple[str, ...] = ()  # of what fills the gap, besides the model's own stop tokens


FORMATS = (
    InfillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>"),
    ),
    InfillFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<|endoftext|>", "<file_sep>", "<fim_pad>")),
    InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    InfillFormat("[PREFIX]", "[SUFFIX]", None),
)


@dataclass(frozen=True, slots=True)
class Infill:
    """The format of one tokenizer."""

    before_id: int
    after_id: int
    middle_id: int | None
    end_ids: frozenset[int]

    def prompt_ids(
        self, tokenizer: Tokenizer, before: str | Sequence[int], after: str, *, param: str, max_model_len: int | None
    ) -> list[int]:
        """Return the prompt that asks for the text between two others.

        Args:
            tokenizer: the model's tokenizer.
            before: the text before the gap, or its tokens.
            after: the text after the gap.
            param: the request field that has the text before the gap, for errors.
            max_model_len: longer texts are refused before they are encoded.

        Raises:
            InvalidParameter: a text has a lone surrogate.
            ContextLengthExceeded: a text is too long.
        """
        begin = tokenizer.encode("", add_special_tokens=True)
        ids = before
        if isinstance(before, str):
            ids = tokenizer.encode(before, add_special_tokens=False, param=param, max_model_len=max_model_len)
        # A text that follows a mark begins without the space that some tokenizers put first.
        has_space = tokenizer.token_bytes is not None and tokenizer.token_bytes.num_leading_spaces_stripped > 0
        mark = MARK if has_space else ""
        num_marks = len(tokenizer.encode(mark, add_special_tokens=False))
        ids_after = tokenizer.encode(
            mark + after, add_special_tokens=False, param="suffix", max_model_len=max_model_len
        )
        of_before, of_after = [self.before_id, *ids], [self.after_id, *ids_after[num_marks:]]
        if self.middle_id is None:
            return [*begin, *of_after, *of_before]
        return [*begin, *of_before, *of_after, self.middle_id]


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """Return the format whose tokens a tokenizer has; None if it has those of none."""
    find = tokenizer.id_of
    for style in FORMATS:
        before, after = find(style.before), find(style.after)
        middle = None if style.middle is None else find(style.middle)
        if before is not None and after is not None and (style.middle is None or middle is not None):
            ends = frozenset(found for name in style.ends if (found := find(name)) is not None)
            return Infill(before, after, middle, ends)
    return None
