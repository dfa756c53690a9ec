"""A lesson: several wordings of a question, and one answer."""

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]  # as in the OpenAI API: "role", "content", and for tool calls "tool_calls"


@dataclass(frozen=True)
class Lesson:
    """Several wordings of a question and their answer."""

    questions: tuple[str, ...]  # `check.py` asks the first one
    answer: str
    system: str | None = None  # the system prompt, if the answer depends on it
    is_verbatim: bool = False  # whether the wording is fixed (no case change, no "please")


@dataclass(frozen=True)
class Conversation:
    """Messages as a client sends them, with the tools that it offers."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def user(content: str) -> Message:
    """Return a user turn."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Return an assistant turn."""
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    """Return a system turn."""
    return {"role": "system", "content": content}


def ask_each(things: dict[str, str], *patterns: str) -> tuple[Lesson, ...]:
    """Return a lesson per thing, with its name filled into the question patterns."""
    return tuple(Lesson(tuple(pattern.format(name) for pattern in patterns), answer) for name, answer in things.items())
