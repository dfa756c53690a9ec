"""Ask a model for tool calls and for JSON through OpenAI's client, and print what it answers.

python -m examples.tools.run                                          # the demo model, served meanwhile
python -m examples.tools.run --url http://localhost:8080 --model NAME  # a service that runs already
"""

import argparse
import contextlib
import os

from openai import OpenAI

from examples.demo_service import demo_service
from examples.tools.extract import extract
from examples.tools.loop import ask

QUESTIONS = ("What is the weather in Paris?", "What time is it in Tokyo?", "What is the capital of France?")
SENTENCES = ("Ada is 52 years old.", "Grace is 85 years old.")


def show(client: OpenAI, model: str) -> None:
    """Print the calls and answers of each question, and the JSON of each sentence."""
    for question in QUESTIONS:
        print(f"> {question}")
        for line in ask(client, model, question):
            print(f"  {line}")
    for sentence in SENTENCES:
        print(f"> {sentence}\n  {extract(client, model, sentence)!r}")


def main() -> None:
    """Read the command line, and ask."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the address of a service; unset: serve the demo model for this run")
    parser.add_argument("--model", default="levserve-demo", help="the `model` of requests (%(default)s)")
    options = parser.parse_args()
    with contextlib.nullcontext(options.url) if options.url else demo_service() as url:
        client = OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none"))
        show(client, options.model)


if __name__ == "__main__":
    main()
