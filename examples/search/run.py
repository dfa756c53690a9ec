"""Index a folder of texts, find what a question is about, and have a model answer from that.

python -m examples.search.run docs "How is a bundle found?"
python -m examples.search.run docs "How is a bundle found?" --encoder-uri gs://my-bucket/bge-small
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from openai import OpenAI

from examples.demo_service import demo_service
from examples.search.index import Found, Index, passages_of

MINILM = "hf://sentence-transformers/all-MiniLM-L6-v2"
ENCODER, CHAT = "encoder", "levserve-demo"
NUM_RESULTS = 3


def answer(client: OpenAI, question: str, found: Found) -> str:
    """Ask the model of a service to answer from a passage."""
    content = f"{found.passage.text}\n\n{question}"
    reply = client.chat.completions.create(
        model=CHAT, messages=[{"role": "user", "content": content}], temperature=0, max_completion_tokens=64
    )
    return (reply.choices[0].message.content or "").strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, serve both models, and print what is found and answered."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="its texts are indexed, and those below it")
    parser.add_argument("question", help="what to look for")
    parser.add_argument("--encoder-uri", default=MINILM, help="MODEL_URI of the encoder (%(default)s)")
    options = parser.parse_args(arguments)
    passages = passages_of(options.folder)
    with demo_service(MODEL_URI=options.encoder_uri, MODEL_NAME=ENCODER) as encoder, demo_service() as chat:
        found = Index(_client(encoder), ENCODER, passages).search(options.question, NUM_RESULTS)
        for passage, similarity in found:
            print(f"{similarity:.2f}  {passage.file}: {passage.text[:160]}")
        print(f"> {options.question}\n  {answer(_client(chat), options.question, found[0])}")


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none")


if __name__ == "__main__":
    main()
