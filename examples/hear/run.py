"""Write down what is said in a recording, through OpenAI's client.

python -m examples.hear.run                           # digits and commands, by the demo model
python -m examples.hear.run --real                    # a few sentences that espeak-ng speaks, by Whisper tiny.en
python -m examples.hear.run meeting.m4a --real --words       # a file, with the time of every word
python -m examples.hear.run meeting.m4a --model-uri hf://openai/whisper-small
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from openai import OpenAI

from examples.demo_service import ROOT, demo_service
from examples.hear.spoken import clip, speak, wave_file
from examples.hear.tiny_en import write_checkpoint

MODEL = "whisper"
DEMO, SPOKEN = (Path(__file__).with_name(name) for name in ("model", "spoken.flac"))
NUM_SENTENCES = 6


def print_stream(client: OpenAI, name: str, content: bytes) -> None:
    """Print the text as it is heard."""
    for event in client.audio.transcriptions.create(model=MODEL, file=(name, content), stream=True):
        if event.type == "transcript.text.delta":
            print(event.delta, end="", flush=True)
    print()


def print_words(client: OpenAI, name: str, content: bytes) -> None:
    """Print when each word is said."""
    found = client.audio.transcriptions.create(
        model=MODEL, file=(name, content), response_format="verbose_json", timestamp_granularities=["word"]
    )
    for word in found.words or []:
        print(f"{word.start:7.2f}  {word.word}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, serve the model, and print what is said."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a recording; without it, one of the example")
    parser.add_argument("--real", action="store_true", help="hear with the real weights of Whisper tiny.en")
    parser.add_argument("--words", action="store_true", help="print the time of each word")
    parser.add_argument("--model-uri", help="MODEL_URI of another Whisper")
    options = parser.parse_args(arguments)
    uri = options.model_uri or str(DEMO)
    if options.real:
        uri = str(write_checkpoint(ROOT / ".cache" / "hear" / "tiny.en"))
    if options.file is None and uri == str(DEMO):
        name, content = SPOKEN.name, SPOKEN.read_bytes()
    elif options.file is None:
        said = clip(0, NUM_SENTENCES)
        print(f"said:  {said.text}")
        name, content = "spoken.wav", wave_file(speak(said))
    else:
        name, content = options.file.name, options.file.read_bytes()
    with demo_service(MODEL_URI=uri, MODEL_NAME=MODEL) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        (print_words if options.words else print_stream)(client, name, content)


if __name__ == "__main__":
    main()
