"""The thinking with which a chat's answers begin, and the grammar that waits for its end."""

from dataclasses import dataclass

from service.api.schema.template import TemplateFields
from service.api.served import ServedModel
from service.text.grammar.behind_thinking import GrammarBehindThinking
from service.text.grammar.compiler import Grammar
from service.text.thinking import CLOSING, OPENING, ThinkingParser, ThinkingTags


@dataclass(frozen=True, slots=True)
class ChatThinking:
    """The thinking of a chat whose model may write some."""

    tags: ThinkingTags | None  # None if a tag is several tokens
    is_open: bool  # the prompt has the opening tag
    is_over: bool  # the prompt has the closing tag, or the beginning of the answer
    is_held: bool  # a grammar holds the answer

    def parser(self) -> ThinkingParser:
        """Return a parser of one answer."""
        return ThinkingParser(is_open=self.is_open, keeps_space=self.is_held)

    def before(self, grammar: Grammar) -> Grammar | GrammarBehindThinking:
        """Return a grammar that begins behind the thinking."""
        if self.tags is None or self.is_over:
            return grammar
        return GrammarBehindThinking(grammar, self.tags, is_open=self.is_open, may_end=not self.is_held)

    @property
    def tag_ids(self) -> frozenset[int]:
        """The tags as tokens."""
        return frozenset(self.tags or ())


def chat_thinking(prompt_end: str, fields: TemplateFields, model: ServedModel, *, is_held: bool) -> ChatThinking | None:
    """Return the thinking of a chat; None if its answers have none.

    Args:
        prompt_end: the last characters of the rendered chat, without space behind them.
        fields: of the request.
        model: that answers, and whose answers may have thinking.
        is_held: whether a grammar holds the answer. Where a tag is several tokens, the grammar cannot wait for it and
            begins at once.
    """
    tags = ThinkingTags.of(model.tokenizer)
    is_over = prompt_end.endswith(CLOSING) or fields.continue_final_message
    if is_held and (tags is None or is_over):
        return None
    return ChatThinking(tags, prompt_end.endswith(OPENING), is_over, is_held)
