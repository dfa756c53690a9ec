"""A folder's paragraphs and their vectors, in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from openai import OpenAI

SUFFIXES = (".md", ".rst", ".txt")
BATCH = 256  # texts of a request


class Passage(NamedTuple):
    """A paragraph of a file."""

    file: str  # relative to the folder
    text: str


class Found(NamedTuple):
    """A passage, and how similar it is to a question."""

    passage: Passage
    similarity: float  # at most 1


class Index:
    """The passages of a folder, to be searched."""

    def __init__(self, client: OpenAI, model: str, passages: Sequence[Passage]) -> None:
        """Ask for the vector of each passage."""
        self._client, self._model, self._passages = client, model, passages
        self._vectors = self._encode([passage.text for passage in passages])

    def search(self, question: str, num_results: int) -> list[Found]:
        """Return the passages most similar to a question, the most similar first."""
        similarities = self._vectors @ self._encode([question])[0]
        best = np.argsort(-similarities)[:num_results]
        return [Found(self._passages[number], float(similarities[number])) for number in best]

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors: list[list[float]] = []
        for begin in range(0, len(texts), BATCH):
            # A passage may be longer than the model takes; its beginning then stands for it.
            answer = self._client.embeddings.create(
                model=self._model, input=list(texts[begin : begin + BATCH]), extra_body={"truncate_prompt_tokens": -1}
            )
            vectors += [item.embedding for item in answer.data]
        return np.array(vectors, np.float32)


def passages_of(folder: Path) -> list[Passage]:
    """Return the paragraphs of all texts below a folder.

    Raises:
        SystemExit: there are none.
    """
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES)
    found = [
        Passage(str(file.relative_to(folder)), " ".join(paragraph.split()))
        for file in files
        for paragraph in file.read_text(errors="replace").split("\n\n")
        if paragraph.strip()
    ]
    if not found:
        raise SystemExit(f"{folder} has no texts ({', '.join(SUFFIXES)}).")
    return found
