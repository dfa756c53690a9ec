"""Change the service one place at a time with mutmut, and count the changes that no test notices.

`python -m scripts.mutate [PLACE ...]`; the exit code is 1 if the tests of a place notice less than nine in ten. mutmut
keeps its verdicts in `mutants/`, so an interrupted run goes on where it stopped; it is configured in `pyproject.toml`.
"""

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

PLACES = ("engine.schedule", "text", "api.schema", "storage", "weights")
EQUIVALENT = Path("tests/mutation/equivalent.toml")
LOWEST_SCORE = 0.9
NOTICED, MISSED = {"killed", "timeout", "segfault"}, {"survived", "no tests", "suspicious"}


def main() -> int:
    """Run mutmut on each place, and print a row of a table."""
    scores = []
    for place in sys.argv[1:] or PLACES:
        pattern = f"service.{place.replace('/', '.')}.*"
        subprocess.run(["mutmut", "run", pattern], check=False)
        verdicts = dict(_verdicts(pattern))
        missed = [mutant for mutant, verdict in verdicts.items() if verdict in MISSED]
        different = [mutant for mutant in missed if not _is_equivalent(mutant)]
        num_noticed = sum(count for verdict, count in Counter(verdicts.values()).items() if verdict in NOTICED)
        scores.append(num_noticed / max(num_noticed + len(different), 1))
        print(*different, sep="\n")
        print(f"| {place} | {len(verdicts)} mutants | {num_noticed} noticed | {len(missed)} not, of which "
              f"{len(missed) - len(different)} equivalent | {scores[-1]:.3f} |", flush=True)  # fmt: skip
    return 0 if min(scores) >= LOWEST_SCORE else 1


def _verdicts(pattern: str) -> list[tuple[str, str]]:
    """Return the name and the verdict of each mutant of a place that was tried."""
    lines = _mutmut("results", "--all", "true").splitlines()
    pairs = [(name.strip(), verdict.strip()) for name, _, verdict in (line.rpartition(": ") for line in lines)]
    return [pair for pair in pairs if pair[0].startswith(pattern.removesuffix("*")) and pair[1] != "not checked"]


def _is_equivalent(mutant: str) -> bool:
    """Return whether a mutant changes no behaviour, as `EQUIVALENT` explains."""
    lines = _mutmut("show", mutant).splitlines()
    [file] = [line.removeprefix("--- ") for line in lines if line.startswith("--- ")]
    was, becomes = (_joined(lines, sign) for sign in "-+")
    return (file, was, becomes) in _equivalent()


def _joined(lines: list[str], sign: str) -> str:
    return " ".join(line[1:].strip() for line in lines if line.startswith(sign) and not line.startswith(3 * sign))


def _equivalent() -> set[tuple[str, str, str]]:
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(entry["file"], entry["was"], entry["becomes"]) for entry in entries}


def _mutmut(*arguments: str) -> str:
    return subprocess.run(["mutmut", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
