"""The rows of a soak by name."""

from collections.abc import Callable, Iterator

from scripts.soak.figures import Figure, Scale
from scripts.soak.legal import legal
from scripts.soak.malformed import malformed
from scripts.soak.mixed import mixed
from scripts.soak.overload import overload
from scripts.soak.refusals import refusals
from scripts.soak.sockets import silent_and_deaf, vanishing
from scripts.soak.stops import failures, terminations

ROWS: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    "malformed": malformed,
    "legal": legal,
    "refusals": refusals,
    "overload": overload,
    "sockets": silent_and_deaf,
    "vanishing": vanishing,
    "failures": failures,
    "terminations": terminations,
    "mixed": mixed,
}
