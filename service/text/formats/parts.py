"""The parts of an answer, in the order of its text."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str
    begin: int = field(default=0, compare=False)  # the character of the answer's text that it begins at


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call."""

    index: int  # among the calls of the answer
    name: str
    id: str | None = field(default=None, compare=False)  # that the model wrote


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of a call's arguments, which are a JSON object."""

    index: int
    text: str


Part = Thought | Content | CallStart | Arguments
