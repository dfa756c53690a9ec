"""Change the service one place at a time, and count the changes that no test notices: `make mutate`."""

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.mutate.mutants import Mutant, mutants_of
from scripts.mutate.survey import Killers, survey
from scripts.mutate.trials import Tree, import_libraries
from scripts.mutate.warm import Warm
from scripts.mutate.workers import Trial, Worker, try_all

# Of each place, the tests that are to notice a change: quick ones, and those that the place's own page names.
PLACES = {
    "engine/schedule": ("tests/engine/schedule", "--ignore=tests/engine/schedule/test_scheduler_properties.py"),
    "text": ("tests/text",),
    "api/schema": (
        "tests/api",
        *(
            f"--ignore=tests/api/{name}"
            for name in ("http", "batch", "schema/test_structure.py", "vectors/test_waiting.py")
        ),
        "--deselect=tests/api/openapi/test_document.py::test_a_start_does_not_make_the_document",
    ),
    "storage": ("tests/storage", "-m", "not slow"),
    "weights": (
        "tests/weights",
        *(f"tests/checkpoint/test_{name}.py" for name in ("load", "pickled_loading", "stored_formats", "stored_int8")),
        "-m",
        "not slow",
    ),
}
EQUIVALENT = Path("tests/mutation/equivalent.toml")
VERDICTS = Path(".cache/mutate")
SAMPLE = 300  # mutants of a place, unless all are asked for
NUM_OF_EACH_FILE = 2  # come first in a sample
LOWEST_SCORE = 0.9
NOTICED = ("killed", "timeout")


@dataclass
class Tally:
    """What became of the mutants of one place."""

    place: str
    num_mutants: int
    verdicts: dict[str, str]
    seconds: list[float]  # of each trial
    minutes: float

    @property
    def score(self) -> float:
        """The share of the mutants that change behaviour which a test noticed."""
        count = Counter(self.verdicts.values())
        tried = len(self.verdicts) - count["equivalent"]
        return sum(count[verdict] for verdict in NOTICED) / tried if tried else 1.0

    def __str__(self) -> str:
        """Return a row of the table."""
        count = Counter(self.verdicts.values())
        return (
            f"| {self.place} | {self.num_mutants} | {len(self.verdicts)} | {count['killed']} | {count['timeout']} | "
            f"{count['survived']} | {count['equivalent']} | {self.score:.3f} | "
            f"{median(self.seconds or [0.0]):.1f} | {self.minutes:.0f} |"
        )


def main() -> int:
    """Run the mutants of the places that the command line names."""
    options = _options()
    equivalent = _equivalent()
    import_libraries()
    tallies = [_mutate(place, equivalent, options) for place in options.places or PLACES]
    print("\n| place | mutants | tried | killed | timeout | survived | equivalent | score | median s | minutes |")
    print("|---|---|---|---|---|---|---|---|---|---|", *tallies, sep="\n")
    return 0 if all(tally.score >= LOWEST_SCORE for tally in tallies) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutate", description=__doc__)
    parser.add_argument("places", nargs="*", metavar="PLACE", help=f"of {', '.join(PLACES)}; all without any")
    parser.add_argument("--sample", default=str(SAMPLE), help="mutants of a place to try, or `all`")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trials at a time")
    parser.add_argument("--resume", choices=("kills", "all"), help="take these verdicts of earlier runs as they are")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="try no more of a place after this time")
    options = parser.parse_args()
    if unknown := set(options.places) - set(PLACES):
        parser.error(f"{', '.join(unknown)}: the places are {', '.join(PLACES)}")
    return options


def _equivalent() -> dict[tuple[str, str, str], str]:
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(entry["file"], entry["was"], entry["becomes"]): entry["reason"] for entry in entries}


def _mutate(place: str, equivalent: dict[tuple[str, str, str], str], options: argparse.Namespace) -> Tally:
    start = time.monotonic()
    mutants = [mutant for path in sorted(Path("service", place).rglob("*.py")) for mutant in mutants_of(str(path))]
    known = {(mutant.path, mutant.was, mutant.becomes) for mutant in mutants}
    for file, was, becomes in equivalent:
        if file.startswith(f"service/{place}/") and (file, was, becomes) not in known:
            print(f"{EQUIVALENT}: no such mutant of {file}: {was} -> {becomes}")
    sample = _in_order(mutants)
    if options.sample != "all":
        sample = sample[: int(options.sample)]
    verdicts = dict.fromkeys((m.key for m in sample if (m.path, m.was, m.becomes) in equivalent), "equivalent")
    kept = VERDICTS / f"{place.replace('/', '-')}-trials.json"
    old: dict[str, dict[str, str]] = json.loads(kept.read_text()) if kept.exists() else {}
    if options.resume:
        wanted = {mutant.key for mutant in sample} - verdicts.keys()
        earlier = {key: old[key]["verdict"] for key in wanted & old.keys()}
        verdicts |= {k: v for k, v in earlier.items() if v in NOTICED or (options.resume == "all" and v == "survived")}
    todo = [mutant for mutant in sample if mutant.key not in verdicts]
    killers = Killers({key: record["killer"] for key, record in old.items()})
    trials: list[float] = []
    with tempfile.TemporaryDirectory(prefix="levserve-mutate-") as folder:
        for trial in _trials(todo, Path(folder), PLACES[place], killers, options, end_s=start + 60 * options.minutes):
            mutant, verdict = trial.mutant, trial.verdict
            verdicts[mutant.key] = verdict
            trials.append(trial.seconds)
            killers.note(mutant, trial.killer)
            old[mutant.key] = {"verdict": verdict, "killer": trial.killer}
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(old, indent=1))
            if verdict not in NOTICED:
                print(f"{verdict}: {mutant}", flush=True)
            if verdict == "broken":
                print(trial.output[-3000:])
    return Tally(place, len(mutants), verdicts, trials, (time.monotonic() - start) / 60)


def _trials(
    mutants: Sequence[Mutant],
    folder: Path,
    selection: Sequence[str],
    killers: Killers,
    options: argparse.Namespace,
    *,
    end_s: float,
) -> Iterator[Trial]:
    if not mutants:
        return
    trees = [Tree(folder / str(number)) for number in range(options.jobs)]
    tests_of = survey(trees[0], selection, killers)
    warm = [Warm(folder / f"warm-{number}", tree, selection) for number, tree in enumerate(trees)]
    yield from try_all(mutants, [Worker(*pair) for pair in zip(trees, warm, strict=True)], tests_of, end_s=end_s)
    for process in warm:
        process.end()


def _in_order(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return mutants by their hashes, as good as chance and the same each time; the first ones are of every file."""
    by_hash = sorted(mutants, key=lambda mutant: mutant.key)
    num_of: Counter[str] = Counter()
    first: list[Mutant] = []
    for mutant in by_hash:
        if num_of[mutant.path] < NUM_OF_EACH_FILE:
            first.append(mutant)
        num_of[mutant.path] += 1
    return first + [mutant for mutant in by_hash if mutant not in first]


if __name__ == "__main__":
    sys.exit(main())
