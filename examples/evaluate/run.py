"""Evaluate a model with lm-eval through the API that serves it, and print lm-eval's tables.

python -m examples.evaluate.run                                          # the demo model, served meanwhile
python -m examples.evaluate.run --url http://localhost:8080 --model NAME  # a service that runs already
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

from examples.demo_service import demo_service

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
HARNESS = Path("examples/evaluate/harness.py")
TASKS = HARNESS.parent / "tasks"
# Each kind of model in lm-eval, with its route and its tasks.
KINDS = (
    ("local-completions", "/v1/completions", ("demo_choices", "demo_completions")),
    ("local-chat-completions", "/v1/chat/completions", ("demo_chat",)),
)


def evaluate(url: str, model: str, max_length: int, output: Path) -> None:
    """Run the tasks; tables go to stdout, samples and results into a folder.

    Raises:
        CalledProcessError: lm-eval failed, and has printed why.
    """
    uv = str(UV) if UV.exists() else shutil.which("uv") or "uv"
    command = [uv, "run", "--quiet", "--locked", "--python", sys.executable, "--script", str(HARNESS), "run"]
    for kind, route, tasks in KINDS:
        options = f"model={model},base_url={url}{route},max_length={max_length},num_concurrent=8"
        command_of_kind = [*command, "--model", kind, "--model_args", options, "--include_path", str(TASKS)]
        command_of_kind += ["--tasks", ",".join(tasks), "--output_path", str(output / kind), "--log_samples"]
        command_of_kind += ["--apply_chat_template"] if "chat" in kind else []
        # The tasks name their data relative to the root of the repository.
        subprocess.run(command_of_kind, cwd=ROOT, check=True)


def main() -> None:
    """Read the command line and evaluate."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the address of a service; unset: serve the demo model for this run")
    parser.add_argument("--model", default="levserve-demo", help="the `model` of requests (%(default)s)")
    parser.add_argument("--max-length", type=int, default=1024, help="its context in tokens (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path(".cache/evaluate"), help="for results (%(default)s)")
    options = parser.parse_args()
    with contextlib.nullcontext(options.url) if options.url else demo_service() as url:
        evaluate(url.rstrip("/"), options.model, options.max_length, options.output)


if __name__ == "__main__":
    main()
