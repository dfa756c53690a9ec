"""The rows of a soak by name."""

from collections.abc import Callable, Iterator

from scripts.soak.figures import Figure, Scale
from scripts.soak.malformed import malformed
from scripts.soak.neighbours import endless_templates, neighbours
from scripts.soak.sockets import silent_and_deaf, vanishing
from scripts.soak.stops import failures, terminations

ROWS: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    "malformed": malformed,
    "neighbours": neighbours,
    "templates": endless_templates,
    "sockets": silent_and_deaf,
    "vanishing": vanishing,
    "failures": failures,
    "terminations": terminations,
}
