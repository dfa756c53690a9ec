"""Earlier turns as a family's template takes them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

SHORT_ID_CHARS = 9
_BETWEEN = "\n"  # of a thinking and a content


def one_call_a_message(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat in which each message has one call, which its result follows, and no content beside thinking.

    Harmony's template writes only the first call of a message, and refuses a content beside calls and thinking: the
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


class KnownIds:
    """The ids of a conversation's calls, as the family's templates take them."""

    def __init__(self, form: str) -> None:
        """Begin a conversation; `form` is `short`, or has a name and the number of the call, or is empty for any."""
        self._form = form
        self._num_calls = 0
        self._known: dict[str, str] = {}

    def of_call(self, call_id: str, name: str) -> str:
        """Return the id of the next call."""
        known = self._form.replace("$name", name).replace("$n", str(self._num_calls))
        self._num_calls += 1
        if self._form in ("", "short") or call_id.startswith(known.rstrip("0123456789")):
            return self.of_result(call_id)
        self._known[call_id] = known
        return known

    def of_result(self, call_id: str) -> str:
        """Return the id of a call that a result answers."""
        return _short_id(call_id) if self._form == "short" else self._known.get(call_id, call_id)


def _short_id(call_id: str) -> str:
    """Return an id that Mistral's templates take, and equal ones for equal ones."""
    is_short = len(call_id) == SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:SHORT_ID_CHARS]
