"""The parts of which every known format of tool calls consists."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls into its text.

    A call is `before_name`, the name, `after_name`, its arguments as a JSON object, and `after_arguments`.
    """

    name: str  # vLLM's, where it has one
    before_name: str
    after_name: str
    after_arguments: str
    opening: str = ""  # begins calls anywhere in a text; without one, calls begin an answer with `before_name`
    optional_opening: str = ""  # may come before calls that have no opening
    first: str = ""  # after the opening of several calls
    between: str = ""
    last: str = ""  # after the last of several calls
    closing: str = ""  # after each call
    opens_each: bool = False  # whether the opening is repeated before each call
    allows_several: bool = True  # whether the family's templates take several calls in one answer
    has_short_ids: bool = False  # whether the family's templates take ids of nine letters and digits alone

    @property
    def markers(self) -> tuple[str, ...]:
        """The strings that a tokenizer may have as special tokens."""
        stated = (self.opening, self.optional_opening, self.after_name, self.closing)
        return tuple(marker for marker in stated if marker)
