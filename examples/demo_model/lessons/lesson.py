"""What one lesson is: several ways to ask, and the one answer."""

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]  # as in the OpenAI API: "role", "content", and for tool calls "tool_calls"


@dataclass(frozen=True)
class Lesson:
    """One thing that the model is taught."""

    questions: tuple[str, ...]  # the first one is the one that `check.py` asks
    answer: str
    system: str | None = None  # the system prompt that the answer depends on, if it does
    is_verbatim: bool = False  # whether the wording must stay as it is (no case change, no "please")


@dataclass(frozen=True)
class Conversation:
    """Messages as a client would send them, with the tools that the client offers."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def user(content: str) -> Message:
    """Make a user turn."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Make an assistant turn."""
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    """Make a system turn."""
    return {"role": "system", "content": content}


def ask_each(things: dict[str, str], *patterns: str) -> tuple[Lesson, ...]:
    """Make a lesson for each thing, its questions made from `patterns` by filling in the thing's name."""
    return tuple(Lesson(tuple(pattern.format(name) for pattern in patterns), answer) for name, answer in things.items())
