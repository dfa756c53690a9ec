"""The words of a command line, in the form that the parser takes."""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches

TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
FALSE = frozenset({"false", "0", "no", "off", "f", "n"})
# A lower bound for a hint: what resembles a flag less is another flag.
SIMILARITY = 0.8
# `--compilation-config.level 3`, as vLLM writes one value of a JSON object.
DOTTED = re.compile(r"(--?[A-Za-z][A-Za-z-]*)\.([\w.-]+)")


def normalized(words: Sequence[str], switches: Collection[str]) -> list[str]:
    """Return the words with hyphens in flags, and with a value behind each switch.

    Args:
        words: what was typed behind the name of the program.
        switches: the flags that may stand without a value. `--no-NAME` is the opposite of `--NAME`.
    """
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*found, word, *rest]
        if not word.startswith("--"):
            found.append(f"{word}=true" if word in switches else word)
            continue
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if (dotted := DOTTED.fullmatch(flag)) is not None:
            flag = dotted[1]
        positive = f"--{flag.removeprefix('--no-')}"
        if flag in switches:
            if not equals:
                value = rest.pop(0) if rest and rest[0].lower() in TRUE | FALSE else "true"
            found.append(f"{flag}={'false' if value.lower() in FALSE else 'true' if value.lower() in TRUE else value}")
        elif flag.startswith("--no-") and positive in switches and not equals:
            found.append(f"{positive}=false")
        else:
            found.append(f"{flag}{equals}{value}")
    return found


def meant(flag: str, known: Collection[str]) -> str | None:
    """Return the flag that an unknown one is a misspelling or a beginning of; None if there is no single one."""
    name = flag.partition("=")[0].replace("_", "-").lower()
    if name in known:
        return name
    longer = [one for one in known if one.startswith(name)]
    if len(longer) == 1:
        return longer[0]
    close = get_close_matches(name, known, n=1, cutoff=SIMILARITY)
    return close[0] if close else None
