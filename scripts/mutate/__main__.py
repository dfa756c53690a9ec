"""Change the service one place at a time, and count the changes that no test notices: `make mutate`."""

import argparse
import json
import os
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutate.mutants import Mutant, mutants_of
from scripts.mutate.trials import Survey, Tree, import_libraries, reap, run_tests

# Of each place, the tests that are to notice a change: quick ones, and those that the place's own page names.
PLACES = {
    "engine/schedule": ("tests/engine/schedule", "--ignore=tests/engine/schedule/test_scheduler_properties.py"),
    "text": ("tests/text",),
    "api/schema": ("tests/api/schema",),
    "storage": ("tests/storage", "-m", "not slow"),
    "weights": ("tests/weights", "tests/checkpoint/test_load.py", "-m", "not slow"),
}
EQUIVALENT = Path("tests/mutation/equivalent.toml")
VERDICTS = Path(".cache/mutate")
SAMPLE = 300  # mutants of a place, unless all are asked for
LOWEST_SCORE = 0.9
NOTICED = ("killed", "timeout")
PATIENCE_S = 20.0  # for a trial, besides five times what its tests take


@dataclass
class Tally:
    """What became of the mutants of one place."""

    place: str
    num_mutants: int
    verdicts: dict[str, str]
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
            f"{count['survived']} | {count['equivalent']} | {self.score:.3f} | {self.minutes:.0f} |"
        )


def main() -> int:
    """Run the mutants of the places that the command line names."""
    options = _options()
    equivalent = _equivalent()
    import_libraries()
    tallies = [_mutate(place, equivalent, options) for place in options.places or PLACES]
    print("\n| place | mutants | tried | killed | timeout | survived | equivalent | score | minutes |")
    print("|---|---|---|---|---|---|---|---|---|", *tallies, sep="\n")
    return 0 if all(tally.score >= LOWEST_SCORE for tally in tallies) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutate", description=__doc__)
    parser.add_argument("places", nargs="*", metavar="PLACE", help=f"of {', '.join(PLACES)}; all without any")
    parser.add_argument("--sample", default=str(SAMPLE), help="mutants of a place to try, or `all`")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trials at a time")
    parser.add_argument("--resume", action="store_true", help="take the kills of the last run as they are")
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
    sample = sorted(mutants, key=lambda mutant: mutant.key)  # by hashes: as good as chance, and the same each time
    if options.sample != "all":
        sample = sample[: int(options.sample)]
    verdicts = dict.fromkeys((m.key for m in sample if (m.path, m.was, m.becomes) in equivalent), "equivalent")
    kept = VERDICTS / f"{place.replace('/', '-')}.json"
    if options.resume and kept.exists():
        wanted = {mutant.key for mutant in sample}
        old = json.loads(kept.read_text())
        verdicts |= {k: v for k, v in old.items() if k in wanted and k not in verdicts and v in NOTICED}
    todo = [mutant for mutant in sample if mutant.key not in verdicts]
    with tempfile.TemporaryDirectory(prefix="levserve-mutate-") as folder:
        trees = [Tree(Path(folder, str(number))) for number in range(options.jobs)]
        tests_of = _survey(trees[0], PLACES[place])
        for mutant, verdict, tree in _try_all(todo, trees, tests_of):
            verdicts[mutant.key] = verdict
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(verdicts, indent=1))
            if verdict not in NOTICED:
                print(f"{verdict}: {mutant}", flush=True)
            if verdict == "broken":
                print(tree.output[-3000:])
    return Tally(place, len(mutants), verdicts, (time.monotonic() - start) / 60)


TestsOf = Callable[[Mutant], tuple[list[str], float]]


def _survey(tree: Tree, selection: Sequence[str]) -> TestsOf:
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
        # First those that have a word of the change in their names, then quick ones.
        words = set(re.findall(r"[a-z]{4,}", mutant.was.lower()))
        in_order = sorted(tests, key=lambda test: (not any(word in test for word in words), seconds[test]))
        return in_order, sum(seconds[test] for test in tests)

    return tests_of


def _try_all(mutants: Sequence[Mutant], trees: list[Tree], tests_of: TestsOf) -> Iterator[tuple[Mutant, str, Tree]]:
    """Try mutants, one in each tree at a time, and yield each with its verdict."""
    waiting = list(reversed(mutants))
    idle = list(trees)
    running: dict[int, tuple[Mutant, Tree, float]] = {}
    while waiting or running:
        while waiting and idle:
            mutant = waiting.pop()
            tests, seconds = tests_of(mutant)
            if not tests:
                yield mutant, "survived", idle[0]
                continue
            tree = idle.pop()
            tree.change(mutant.path, mutant.source)
            pid = tree.start(lambda tests=tests: run_tests(tests))
            running[pid] = mutant, tree, time.monotonic() + PATIENCE_S + 5 * seconds
        for pid, (mutant, tree, until) in list(running.items()):
            if (status := reap(pid, until=until)) is not None:
                del running[pid]
                tree.restore(mutant.path)
                idle.append(tree)
                yield mutant, _verdict(status), tree
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
