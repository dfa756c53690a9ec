"""The parts of an answer that may call tools, in the order of its text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text beside the calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call."""

    index: int  # among the calls of the answer
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of a call's arguments, which are a JSON object."""

    index: int
    text: str


Part = Content | CallStart | Arguments
