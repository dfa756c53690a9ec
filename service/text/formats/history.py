"""Earlier turns as a family's template takes them."""

from collections.abc import Mapping, Sequence
from typing import Any

_BETWEEN = "\n"  # of a thinking and a content


def one_call_a_message(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat in which each message has one call, which its result follows, and no content beside thinking.

    Harmony's template writes the first call of a message alone, and refuses a content beside calls and thinking: the
    content goes on with the thinking, as the template writes a content without one.
    """
    found: list[dict[str, Any]] = []
    taken: set[int] = set()
    for place, turn in enumerate(map(dict, turns)):
        if place in taken:
            continue
        calls = turn.get("tool_calls") or []
        content, thinking = turn.get("content"), turn.get("thinking")
        if calls and isinstance(content, str) and content and thinking:
            turn |= {"thinking": f"{thinking}{_BETWEEN}{content}", "content": ""}
        if len(calls) < 2:
            found.append(turn)
            continue
        results: dict[Any, int] = {}
        for later in range(place + 1, len(turns)):
            if turns[later].get("role") != "tool":
                break
            results.setdefault(turns[later].get("tool_call_id"), later)
        first = turn
        for call in calls:
            found.append(first | {"tool_calls": [call]})
            first = {"role": turn["role"], "content": ""}
            if (result := results.get(call.get("id"))) is not None:
                taken.add(result)
                found.append(dict(turns[result]))
    return found
