"""Run the three programs of this folder with a served model, and print what it answers.

python -m examples.tools.run                                          # the demo model, served meanwhile
python -m examples.tools.run --url http://localhost:8080 --model NAME  # a service that runs already
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from openai import OpenAI

from examples.demo_service import demo_service
from examples.tools.extract import extract
from examples.tools.weather import ask

UV = Path(__file__).parents[2] / ".tools" / "uv" / "bin" / "uv"
AGENT = Path(__file__).with_name("agent.py")
WEATHER_QUESTIONS = ("What is the weather in Paris?", "What is the capital of France?")
SENTENCES = ("Ada is 52 years old.", "Grace is 85 years old.")
AGENT_QUESTION = "What time is it in Tokyo?"


def show(client: OpenAI, model: str) -> None:
    """Print the calls and answers of each question about the weather, and the person of each sentence."""
    for question in WEATHER_QUESTIONS:
        print(f"> {question}")
        for line in ask(client, model, question):
            print(f"  {line}")
    for sentence in SENTENCES:
        print(f"> {sentence}\n  {extract(client, model, sentence)!r}")


def show_agent(python: Sequence[str], url: str, model: str) -> str:
    """Return what the agent prints, run by an interpreter that has its framework.

    Raises:
        CalledProcessError: The agent failed, and has printed why.
    """
    command = [*python, str(AGENT), url, model, AGENT_QUESTION]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Read the command line, and run the three programs."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the address of a service; unset: serve the demo model for this run")
    parser.add_argument("--model", default="levserve-demo", help="the `model` of requests (%(default)s)")
    options = parser.parse_args()
    uv = str(UV) if UV.exists() else shutil.which("uv") or "uv"
    with contextlib.nullcontext(options.url) if options.url else demo_service() as served_url:
        url = served_url.rstrip("/")
        show(OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none")), options.model)
        in_its_environment = (uv, "run", "--quiet", "--locked", "--python", sys.executable, "--script")
        print(show_agent(in_its_environment, url, options.model), end="")


if __name__ == "__main__":
    main()
