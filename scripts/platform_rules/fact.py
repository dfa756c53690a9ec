"""A fact: what a plan, a build or a command asks of the platform, in the words of the rules."""

from types import SimpleNamespace
from typing import Any


class Fact(SimpleNamespace):
    """Something asked of the platform: its kind, its origin, and the fields that the rules of this kind read."""

    kind: str
    origin: str

    def __getattr__(self, name: str) -> Any:
        """Return None for a field that is not known, for example before an apply."""
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def seconds(text: str | int | float | None) -> float | None:
    """Return the seconds of a duration such as "2100s", "10m" or 600."""
    if text is None or isinstance(text, int | float):
        return text
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return float(text[:-1]) * unit if unit else float(text)


def gib(text: str | None) -> float | None:
    """Return the GiB of a quantity such as "32Gi" or "512Mi"."""
    if not text:
        return None
    sizes = {"Gi": 1.0, "Mi": 1 / 1024, "G": 1e9 / 2**30, "M": 1e6 / 2**30}
    for suffix, size in sizes.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * size
    return float(text) / 2**30
