"""Have a service write down phrases that the demo model was not trained on, and count the words.

    uv run --extra levanter python -m examples.hear.check

It needs espeak-ng, as the training does, and fails below 95 % of the words.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from openai import OpenAI

from examples.demo_service import demo_service
from examples.hear.spoken import wave_file
from examples.hear.training.lessons import speak_phrase
from examples.hear.training.speaker import SAMPLING_RATE, Speaker

NUM_PHRASES, FIRST_SEED = 200, 1_000_000
REQUIRED = 0.95
SILENCE_S = 0.3  # around a phrase
NUM_SHOWN = 8


def num_errors(heard: Sequence[str], said: Sequence[str]) -> int:
    """Return how many words must be replaced, inserted or deleted."""
    row = list(range(len(said) + 1))
    for number, word in enumerate(heard, start=1):
        before, row[0] = row[0], number
        for place, other in enumerate(said, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def main() -> None:
    """Read the command line, serve the model, and print what it hears."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("examples/hear/model"), help="the checkpoint")
    parser.add_argument("--phrases", type=int, default=NUM_PHRASES, help="how many to say")
    options = parser.parse_args()
    speaker, silence = Speaker(), np.zeros(round(SILENCE_S * SAMPLING_RATE), np.int16)
    num_words = num_wrong = 0
    with demo_service(MODEL_URI=str(options.model.resolve()), MODEL_NAME="hear") as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        for number in range(options.phrases):
            phrase = speak_phrase(speaker, FIRST_SEED + number)
            said = [word.text for word in phrase.words]
            content = wave_file(np.concatenate([silence, phrase.samples, silence]))
            heard = client.audio.transcriptions.create(model="hear", file=("phrase.wav", content)).text.split()
            num_words, wrong = num_words + len(said), num_errors(heard, said)
            num_wrong += wrong
            if number < NUM_SHOWN or wrong:
                print(f"{'x' if wrong else ' '} {' '.join(said)}" + (f"  ->  {' '.join(heard)}" if wrong else ""))
    share = 1 - num_wrong / num_words
    print(f"{num_words} words, {share:.1%} right")
    if share < REQUIRED:
        sys.exit(1)


if __name__ == "__main__":
    main()
