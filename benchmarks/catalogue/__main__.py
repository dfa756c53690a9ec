"""`make bench-catalogue`: a service of many models beside its bounds, on an idle machine.

    python -m benchmarks.catalogue [--quick] [--runs N] [ROW ...]

It prints a table, which a whole run writes into docs/figures/epyc.md too. Its exit code is 1 if a bound is exceeded;
timings of a quick run are meaningless.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path

from benchmarks.catalogue import measurements
from benchmarks.catalogue.measurements import NUM_MODELS
from benchmarks.catalogue.service import CatalogueService, make_models
from benchmarks.checkpoint import SMOLLM_135M, TINY
from benchmarks.contenders import ROOT
from benchmarks.machine import describe_machine
from benchmarks.report import PAGE, fill
from benchmarks.rounds import say
from scripts.soak.figures import Figure, table

# The catalogue is refreshed from the first seconds on, so that what a refresh keeps, a thread, is no growth later.
SETTINGS = {
    "DTYPE": "float32",
    "MAX_NUM_SEQS": "16",
    "MAX_MODEL_LEN": "512",
    "MAX_CACHED_MODELS": "2",
    "CATALOGUE_TTL": "2",
}
ROWS = ("swap", "load_beside", "side_by_side", "swaps", "long_catalogue")
NUM_LISTED = 1000


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catalogue", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--runs", type=int, default=3, help="number of runs of each timing")
    parser.add_argument("--num-swaps", type=int, default=100, help="loads of four models, two of which may be loaded")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(ROWS)}; all if left out")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    folder = ROOT / ".cache" / "bench" / ("catalogue-tiny" if options.quick else "catalogue-135m")
    models = make_models(folder / "models", TINY if options.quick else SMOLLM_135M, NUM_MODELS)
    figures = list(_figures(options, models, folder))
    machine = describe_machine()
    header = f"{machine['processor']}, {machine['cores']} cores; `python -m benchmarks.catalogue --runs {options.runs}`"
    text = f"{header}, {date.today().isoformat()}; medians of the timings.\n\n{table(figures)}\n"
    print(text)
    if not (options.quick or options.rows):
        fill(PAGE, "catalogue", text)
    return int(not all(figure.is_met for figure in figures))


def _figures(options: argparse.Namespace, models: Path, folder: Path) -> Iterator[Figure]:
    rows = options.rows or ROWS
    num_tokens = 32 if options.quick else 64
    if set(rows) & {"swap", "load_beside", "side_by_side"}:
        with _started(models, folder) as service:
            for model in ("m0", "m1"):  # so that the bundle is there, and the shapes of the requests have run
                service.load(model)
                service.stream([(model, service.prompt(n, 128), 4, 0.0) for n in range(16)])
            if "swap" in rows:
                yield from _said(measurements.swap(service, models, options.runs))
            if "load_beside" in rows:
                yield from _said(measurements.load_beside(service, 3 * num_tokens, options.runs))
            if "side_by_side" in rows:
                yield from _said(measurements.side_by_side(service, num_tokens, options.runs))
    if "swaps" in rows:
        expected = _single_answers(models, folder)
        with _started(models, folder) as service:
            yield from _said(measurements.swaps(service, options.num_swaps, expected))
    if "long_catalogue" in rows:
        with _started(_long(models / "m0", folder / "long"), folder) as service:
            yield from _said(measurements.long_catalogue(service, NUM_LISTED, 300))


@contextmanager
def _started(models: Path, folder: Path, **settings: str) -> Iterator[CatalogueService]:
    say(f"starting a service of {models.name}")
    with closing(CatalogueService(models, folder, SETTINGS | settings)) as service:
        yield service


def _single_answers(models: Path, folder: Path) -> dict[tuple[str, int], str]:
    """Return the texts of services that have one model each."""
    texts = {}
    for index in range(NUM_MODELS):
        name = f"m{index}"
        with _started(models, folder, MODELS=name) as service:
            for seed in range(5):
                texts[name, seed] = service.text(name, service.prompt(seed, 8), 8)
    assert len(set(texts.values())) > NUM_MODELS, "the models answer alike, so a mistake would not show"
    return texts


def _long(model: Path, folder: Path) -> Path:
    """Return a folder of many models, whose files are all the same ones."""
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(NUM_LISTED):
        copy = folder / f"m{number}"
        copy.mkdir(parents=True)
        for file in model.iterdir():
            (copy / file.name).hardlink_to(file)
    return folder


def _said(figures: list[Figure]) -> list[Figure]:
    for figure in figures:
        say(f"{figure.row}: {figure.figure} ({figure.bound})")
    return figures


if __name__ == "__main__":
    sys.exit(main())
