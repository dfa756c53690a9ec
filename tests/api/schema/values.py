"""The values that a field takes, the outermost ones first of all, and those just beyond, which it refuses."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
REQUIRED = object()  # in place of a default


@dataclass(frozen=True)
class Values:
    """What a field takes and what it refuses."""

    taken: tuple[Any, ...]
    refused: tuple[Any, ...]
    unstated: tuple[Any, ...] = ()  # is refused too, though the document of the interface does not say so
    wrong_items: Any = None  # a list with several faults, of which the first one is enough
    reads: Callable[[Any], Any] = lambda value: value  # what becomes of a value that is taken, as JSON

    def but(self, *, reads: Callable[[Any], Any]) -> "Values":
        """Return the same for a field that reads values in a form of its own."""
        return replace(self, reads=reads)


@dataclass(frozen=True)
class Field:
    """A field of a body: its default, its values, and the other fields that a value needs."""

    default: Any
    values: Values
    needs: Callable[[Any], Mapping[str, Any]] = lambda value: {}


def field(default: Any, values: Values, **needs: Any) -> Field:
    """Return a field that needs the same other fields with every value."""
    return Field(default, values, lambda value: needs)


def number(lowest: float, highest: float, *, step: float = 0.01) -> Values:
    return Values((lowest, highest), (lowest - step, highest + step, "1", True, [1]))


def integer(lowest: int, highest: int) -> Values:
    return Values((lowest, highest), (lowest - 1, highest + 1, "1", 1.5, True, [1]))


def text(longest: int | None = None, *, shortest: int = 0) -> Values:
    too_long = () if longest is None else ("a" * (longest + 1),)
    return Values(("a" * shortest, "a" * (longest or 5000)), (*too_long, *(("",) if shortest else ()), 7))


def choice(*options: str) -> Values:
    return Values(options, ("other", "", 7))


def choice_or_blank(*options: str) -> Values:
    """Return the values of a choice that is absent if it is empty."""
    return Values(options, ("other", 7))


def list_of(
    items: Callable[[int], Any], wrong: Any, *, longest: int | None = None, shortest: int = 0, not_a_list: Any = 7
) -> Values:
    """Return the values of a list of so many items; `items` makes the item with a number, `wrong` is none."""

    def of(length: int) -> list[Any]:
        return [items(index) for index in range(length)]

    too_long = () if longest is None else (of(longest + 1),)
    too_short = (of(shortest - 1),) if shortest else ()
    taken = (of(shortest), of(3 if longest is None else longest))
    return Values(taken, (*too_long, *too_short, [wrong], not_a_list), wrong_items=[wrong] * 3)


def nested(*taken: Any, refused: tuple[Any, ...] = ()) -> Values:
    """Return the values of an object whose own fields are told with its kind."""
    return Values(taken, ([], 7), unstated=refused)


LONG_NAME = text(512)
MAYBE = Values(("a", "a" * 5000), (7,))  # a text that is absent if it is empty
ROLE = Values(("system", "developer", "user", "assistant", "tool", "of a fine-tune", "r" * 64), ("", "r" * 65, "<", 7))
ARGUMENTS = Values(
    ("{}", {"a": 1}, "", '{"cut": "i', [], 7, True),
    (),
    reads=lambda value: (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))) or "{}",
)
FLAG = Values((True, False), (0, "true"))
NAME = Values(("a" * 64, "aZ_09-"), ("", "a" * 65, "a b", "ä", 7), unstated=("a\n",))  # of a schema
TOOL_NAME = Values(("a" * 128, "aZ_09-./:"), ("", "a" * 129, "a b", "ä", 7), unstated=("a\n",))
OBJECT = Values(({}, {"a": [1]}), ([], "a", 7))


def ids(longest=None, shortest=0):
    values = list_of(lambda index: INT32_MAX * (index % 2), -1, longest=longest, shortest=shortest)
    return replace(values, refused=(*values.refused, [0, INT32_MAX + 1], ["1"], [True]))


LIMIT = Values(
    (-1, 1, INT64_MAX), (0, -2, INT64_MAX + 1, "1", 1.5, True), reads=lambda value: value if value > 0 else None
)
METADATA = Values(
    taken=({}, {f"key{i:061}": "v" * 512 for i in range(16)}),
    refused=({f"{i}": "" for i in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}, {"k": 5}, [], "a"),
    wrong_items={f"{i}": 5 for i in range(3)},
)
TEXTS = Values(
    taken=("a", ["a"] * 2048, [1], [[1, 2]] * 2048),
    refused=("", [], ["a", ""], ["a"] * 2049, ["a", [1]], [[1], "a"], [[1], []], [1, "a"], [1, 2.5], 7, {}),
    reads=lambda value: value if isinstance(value, list) and not isinstance(value[0], int) else [value],
)
SCORED_TEXTS = Values(
    taken=("a", ["a"] * 2048),
    refused=("", [], ["a"] * 2049, ["a", ""], ["a", 7], 7, {}),
    reads=lambda value: value if isinstance(value, list) else [value],
)
DOCUMENTS = Values(
    taken=(["a"] * 2048, [{"text": "a"}, "b"]),
    refused=([], "a", ["a"] * 2049, [""], ["a", 7], [{"text": ""}], [{"title": "a"}], {"text": "a"}),
    reads=lambda value: [item["text"] if isinstance(item, dict) else item for item in value],
)
PROMPTS = Values(
    taken=("", "a", ["a"] * 64, [1], [[1, 2]] * 64, [[1], "a"]),
    refused=(["a"] * 65, ["a", 7], [1, "a"], [1, 2.5], [1, True], 7, {}),
    reads=lambda value: value if isinstance(value, list) and not isinstance(value[0], int) else [value],
)
BIAS = Values(
    taken=({}, {"0": -100, "9999999999": 100}, {str(i): 0.5 for i in range(1024)}),
    refused=({str(i): 1 for i in range(1025)}, {"1": -100.01}, {"1": 100.01}, {"01": 1}, {"-1": 1}, {"a": 1},
             {"1" * 11: 1}, {"1": True}, {"1": "1"}, [], "a"),
    reads=lambda value: {key: float(bias) for key, bias in value.items()},
)  # fmt: skip
STOP = Values(
    taken=("a", "", [], ["a", ""], ["a" * 1024] * 16),
    refused=("a" * 1025, ["a"] * 17, ["a", 7], 7, {}),
    wrong_items=[7] * 3,
    reads=lambda value: [text for text in ([value] if isinstance(value, str) else value) if text],
)
