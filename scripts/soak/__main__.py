"""Run the soak and print a table: `python -m scripts.soak [--short] [ROW ...]`; exit code 1 if a bound is exceeded."""

import argparse
import resource
import subprocess
import sys
import time

from scripts.soak.figures import SHORT, Figure, Scale, table
from scripts.soak.rows import ROWS


def main() -> int:
    """Run the rows and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small counts and short times")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(ROWS)}; all if left out")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - ROWS.keys():
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    subprocess.run([sys.executable, "-m", "service", "prewarm"], check=True)  # else the first row would compile
    figures: list[Figure] = []
    for name in arguments.rows or ROWS:
        print(f"[{time.strftime('%H:%M:%S')}] {name}", file=sys.stderr, flush=True)
        figures += ROWS[name](SHORT if arguments.short else Scale())
    print(table(figures))
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
