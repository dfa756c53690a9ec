"""Grammars compiled for one model's vocabulary, within limits on time and memory, and kept for later requests.

Source of the limits' units: https://github.com/guidance-ai/llguidance/blob/main/parser/src/api.rs (ParserLimits)
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from service.compile.lru_cache import LruCache
from service.errors import InvalidParameter
from service.text.grammar.matcher import Grammar, first_line
from service.text.grammar.vocabulary import grammar_vocabulary
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_KEPT_GRAMMARS = 32
MAX_KEPT_CHARS = 512 * 1024  # a compiled grammar takes a few hundred bytes for each
# A kilobyte or two each, shared by all sequences of a grammar.
MAX_LEXER_STATES = 16_384
MAX_GRAMMAR_SYMBOLS = 200_000
FIRST_MASK_FUEL = 1_000_000  # 20 ms
MASK_FUEL = 200_000  # 15 ms
# Items of the parser for one mask. The token that follows takes time by their square, of all sequences: 50 ms.
MASK_ITEMS = 10_000


def text_of(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the parts of a grammar as the library takes them."""
    return json.dumps({"grammars": list(parts)})


class GrammarCompiler:
    """Compiles grammars for one model; safe to use from several threads, and too slow for the event loop."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        """Compile nothing yet: the tables of the vocabulary are made for the first grammar.

        Args:
            tokenizer: the model's tokenizer.
            vocab_size: number of rows of its embedding.
            end_ids: tokens that end its texts; a checkpoint may state some that its vocabulary lacks.
        """
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.end_ids = frozenset(token_id for token_id in end_ids if token_id < vocab_size)
        self._lock = Lock()
        self._building = Lock()  # of the tables of the vocabulary, once
        self.stated = LruCache[Any](MAX_KEPT_CHARS, lambda stated: len(stated.text))  # by what states them
        self._kept: OrderedDict[str, Grammar] = OrderedDict()

    def prepare(self) -> None:
        """Make the tables of the vocabulary, if its tokens are known."""
        if self.tokenizer.token_bytes is not None and self.end_ids:
            with self._building:
                assert self._vocabulary is not None

    def compile(self, parts: Sequence[Mapping[str, Any]], param: str) -> Grammar:
        """Return the grammar of the first part; it may refer to the others as `@name`.

        Raises:
            InvalidParameter: the grammar is malformed, allows no text, or is too complex; or the tokenizer's decoder is
                unknown.
        """
        return self.compile_text(text_of(parts), param)

    def compile_text(self, text: str, param: str) -> Grammar:
        """Return the grammar of a text that `text_of` has made; raises as `compile`."""
        with self._lock:
            kept = self._kept.get(text)
            if kept is not None and not kept.has_failed:
                self._kept.move_to_end(text)
                return kept
        grammar = Grammar(
            self._compiled(text, param), self.end_ids, self.vocab_size, param, self._vocabulary.tokenize_bytes
        )
        with self._lock:
            self._kept[text] = grammar
            while len(self._kept) > MAX_KEPT_GRAMMARS or sum(map(len, self._kept)) > MAX_KEPT_CHARS:
                self._kept.popitem(last=False)
        return grammar

    def _compiled(self, text: str, param: str) -> "LLMatcher":
        from llguidance import LLMatcher

        if self.tokenizer.token_bytes is None or not self.end_ids:
            message = f"'{param}' is not supported by this model: its tokenizer's bytes or end tokens are unknown."
            raise InvalidParameter(message, param=param)
        with self._building:
            vocabulary = self._vocabulary
        compiled = LLMatcher(vocabulary, text, log_level=0, limits=self._limits)
        # The first mask finds what compilation leaves open, and warms what every sequence needs.
        if not compiled.is_error():
            compiled.compute_bitmask()
        problems = [first_line(compiled.get_error())] if compiled.is_error() else compiled.get_grammar_warnings()
        if problems:
            message = f"Invalid '{param}': it cannot be enforced ({problems[0] or 'no text satisfies it'})."
            raise InvalidParameter(message, param=param)
        return compiled

    @cached_property
    def _vocabulary(self) -> "LLTokenizer":
        return grammar_vocabulary(self.tokenizer, self.vocab_size, sorted(self.end_ids))

    @cached_property
    def _limits(self) -> "LLParserLimits":
        from llguidance import LLParserLimits

        return LLParserLimits(
            initial_lexer_fuel=FIRST_MASK_FUEL,
            step_lexer_fuel=MASK_FUEL,
            step_max_items=MASK_ITEMS,
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SYMBOLS,
            verbose_errors=False,
        )
