"""The parts of which every known format of tool calls consists, and the signs of the chat templates that use it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Of functions; MCP's clients join the names of a server and its tool with dots, slashes or colons.
NAME = r"[a-zA-Z0-9_.:/-]{1,128}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls into its text.

    A call is `before_name`, the name, `after_name`, its arguments, and `after_arguments`. The arguments are a JSON
    object, or elements, one for each argument.
    """

    name: str  # vLLM's, where it has one
    before_name: str = '{"name": "'
    after_name: str = '", "arguments": '
    after_arguments: str = "}"
    has_elements: bool = False  # whether the arguments are elements
    opening: str = ""  # begins calls anywhere in a text; without one, calls begin an answer with `before_name`
    optional_opening: str = ""  # may come before calls that have no opening
    first: str = ""  # after the opening of several calls
    between: str = ""
    last: str = ""  # after the last of several calls
    closing: str = ""  # after each call
    opens_each: bool = False  # whether the opening is repeated before each call
    allows_several: bool = True  # whether the family's templates take several calls in one answer
    has_short_ids: bool = False  # whether the family's templates take ids of nine letters and digits alone
    special_parts: tuple[str, ...] = ()  # parts of the strings above that a tokenizer may have as special tokens
    signs: tuple[str, ...] = ()  # patterns that all are in the family's chat templates
    counter_signs: tuple[str, ...] = ()  # patterns that are in none of them

    @property
    def markers(self) -> tuple[str, ...]:
        """The strings that a tokenizer may have as special tokens."""
        stated = (self.opening, self.optional_opening, self.after_name, self.closing, self.last, *self.special_parts)
        return tuple(marker for marker in stated if marker)

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Return calls, names with arguments as JSON, as the model writes them; of a format without elements."""
        bodies = [f"{self.before_name}{name}{self.after_name}{text}{self.after_arguments}" for name, text in calls]
        if not self.opens_each:
            return f"{self.opening}{self.first}{self.between.join(bodies)}{self.last}"
        return "\n".join(f"{self.opening}\n{body}\n{self.closing}" for body in bodies)

    def is_of(self, template: str) -> bool:
        """Return whether a chat template writes calls this way."""
        return all(re.search(sign, template) for sign in self.signs) and not any(
            re.search(sign, template) for sign in self.counter_signs
        )
