"""Change the service one place at a time, and count the changes that no test notices: `make mutate`."""

import argparse
import json
import os
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from scripts.mutate.mutants import Mutant, mutants_of
from scripts.mutate.trials import Survey, Tree, import_libraries, reap, run_tests

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
    "weights": ("tests/weights", "tests/checkpoint/test_load.py", "-m", "not slow"),
}
EQUIVALENT = Path("tests/mutation/equivalent.toml")
VERDICTS = Path(".cache/mutate")
SAMPLE = 300  # mutants of a place, unless all are asked for
NUM_OF_EACH_FILE = 2  # come first in a sample
LOWEST_SCORE = 0.9
NOTICED = ("killed", "timeout")
PATIENCE_S = 20.0  # for a trial, besides five times what its tests take


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
        trees = [Tree(Path(folder, str(number))) for number in range(options.jobs)]
        tests_of = _survey(trees[0], PLACES[place], killers) if todo else None
        for trial in _try_all(todo, trees, tests_of, end_s=start + 60 * options.minutes) if tests_of else ():
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


class Killers:
    """The tests that noticed changes, in this run or earlier ones: they notice similar ones first."""

    def __init__(self, of_key: dict[str, str]) -> None:
        self._of_key = of_key
        self._of_scope: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def note(self, mutant: Mutant, killer: str) -> None:
        """Remember the test that noticed a change."""
        if killer:
            self._of_key[mutant.key] = killer
            self._of_scope[mutant.path, mutant.scope][killer] += 1

    def rank(self, mutant: Mutant, test: str) -> tuple[bool, int]:
        """Return what a test sorts by, the likeliest killer of a mutant first."""
        return self._of_key.get(mutant.key) != test, -self._of_scope[mutant.path, mutant.scope][test]


@dataclass(frozen=True)
class Trial:
    """How a mutant fared."""

    mutant: Mutant
    verdict: str
    killer: str = ""  # the test that failed
    output: str = ""
    seconds: float = 0.0


TestsOf = Callable[[Mutant], tuple[list[str], float]]


def _survey(tree: Tree, selection: Sequence[str], killers: Killers) -> TestsOf:
    """Run all tests of a place once, and return a function from a mutant to its tests and their seconds."""
    survey = Survey()
    report = tree.folder / "survey.json"

    def run() -> int:
        status = survey.run(selection)
        report.write_text(json.dumps([survey.seconds, survey.lines()]))
        return status

    pid = tree.start(run, writes_bytecode=True)
    while (status := reap(pid, until=time.monotonic() + 1)) is None:
        time.sleep(0.1)
    if status != 0:
        raise SystemExit(f"the tests fail without any change (status {status}):\n{tree.output[-5000:]}")
    seconds, lines = json.loads(report.read_text())

    def tests_of(mutant: Mutant) -> tuple[list[str], float]:
        tests = set(seconds)
        if mutant.function_lines:
            ran = lines.get(mutant.path, {})
            of_function = {test for line in mutant.function_lines for test in ran.get(str(line), ())}
            # A function's own tests. All, if it runs on import; and where no test runs it in this process, those of
            # the file that mirrors its own, which may start others.
            mirror = f"/test_{Path(mutant.path).stem}.py"
            if "" not in of_function:
                tests = of_function or {test for test in seconds if mirror in test}
        # First what noticed such a change before, then those that have its words in their names, then quick ones.
        words = set(re.findall(r"[a-z]{4,}", mutant.was.lower()))

        def rank(test: str) -> tuple[tuple[bool, int], bool, float]:
            return killers.rank(mutant, test), not any(word in test for word in words), seconds[test]

        return sorted(tests, key=rank), sum(seconds[test] for test in tests)

    return tests_of


def _try_all(mutants: Sequence[Mutant], trees: list[Tree], tests_of: TestsOf, *, end_s: float) -> Iterator[Trial]:
    """Try mutants, one in each tree at a time, and yield what became of each; begin none after `end_s`."""
    waiting = list(reversed(mutants))
    idle = list(trees)
    running: dict[int, tuple[Mutant, Tree, float, float]] = {}
    while waiting or running:
        while waiting and idle:
            mutant = waiting.pop()
            if time.monotonic() > end_s:
                waiting.clear()
                break
            tests, seconds = tests_of(mutant)
            if not tests:
                yield Trial(mutant, "survived")
                continue
            tree = idle.pop()
            tree.change(mutant.path, mutant.source)
            pid = tree.start(partial(run_tests, tests, tree.failure))
            now = time.monotonic()
            running[pid] = mutant, tree, now, now + PATIENCE_S + 5 * seconds
        for pid, (mutant, tree, began, until) in list(running.items()):
            if (status := reap(pid, until=until)) is not None:
                del running[pid]
                tree.restore(mutant.path)
                idle.append(tree)
                killer = tree.failure.read_text() if tree.failure.exists() else ""
                yield Trial(mutant, _verdict(status), killer, tree.output, time.monotonic() - began)
        time.sleep(0.01)


def _verdict(status: int) -> str:
    match status:
        case 0:
            return "survived"
        case 5:
            return "broken"  # no test was found, so that the trial says nothing
        case -14:
            return "timeout"
    return "killed"


if __name__ == "__main__":
    sys.exit(main())
