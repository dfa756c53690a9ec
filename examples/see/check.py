"""Have a service describe drawings that the demo model was not trained on, and count the right answers.

    uv run --extra levanter python -m examples.see.check

It fails below 95 % of whole descriptions.
"""

import argparse
import io
import random
import sys
from pathlib import Path

from openai import OpenAI

from examples.demo_service import demo_service
from examples.see.drawings import QUESTIONS, draw, scene
from examples.see.run import MODEL, answer, data_url

NUM_DRAWINGS, FIRST_SEED = 200, 1_000_000
REQUIRED = 0.95


def main() -> None:
    """Read the command line, serve the model, and print what it misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("examples/see/model"), help="the checkpoint")
    parser.add_argument("--drawings", type=int, default=NUM_DRAWINGS, help="how many to draw")
    options = parser.parse_args()
    num_right = dict.fromkeys(QUESTIONS, 0)
    with demo_service(MODEL_URI=str(options.model.resolve()), MODEL_NAME=MODEL) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        for number in range(options.drawings):
            chosen, output = random.Random(FIRST_SEED + number), io.BytesIO()
            drawn = scene(chosen)
            draw(drawn, chosen).save(output, "PNG")
            for kind, questions in QUESTIONS.items():
                said = answer(client, data_url(output.getvalue(), "image/png"), chosen.choice(questions))
                expected = drawn.answer(kind)
                num_right[kind] += said == expected
                if said != expected:
                    print(f"{expected}  ->  {said}")
    print(", ".join(f"{kind}: {right / options.drawings:.1%} right" for kind, right in num_right.items()))
    if num_right["describe"] < REQUIRED * options.drawings:
        sys.exit(1)


if __name__ == "__main__":
    main()
