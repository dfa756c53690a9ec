"""The texts of each measurement: of one length, or of many lengths together."""

from dataclasses import dataclass

import numpy as np

from tests.parity.sentences import minilm

FIRST_ID, LAST_ID = 1000, 20_000  # ordinary tokens of BERT's vocabulary
NUM_SPECIAL = 2  # tokens that BERT's tokenizer adds to a text


@dataclass(frozen=True)
class Cell:
    """One measurement: clients that send a text each, and the next one as soon as it is answered."""

    num_tokens: int | None  # of each text; None for a crowd of mixed lengths
    num_clients: int
    num_texts: int

    @property
    def name(self) -> str:
        """A short name, such as `t128c8`."""
        return f"{'mixed' if self.num_tokens is None else f't{self.num_tokens}'}c{self.num_clients}"

    def texts(self, seed: int) -> list[list[int]]:
        """Return the token ids of each text."""
        random = np.random.RandomState(seed)
        if self.num_tokens is None:  # most are short, some are long: a median of 40 tokens
            lengths = np.clip(random.lognormal(np.log(40), 1.0, self.num_texts), 4, 512).astype(int).tolist()
        else:
            lengths = [self.num_tokens] * self.num_texts
        return [random.randint(FIRST_ID, LAST_ID, length).tolist() for length in lengths]


def cells(model: str = "minilm", *, is_quick: bool) -> list[Cell]:
    """Return all measurements of a model; of the larger one, all that take less than half a minute."""
    fewest = {16: 32, 128: 8, 512: 4}  # texts, so that one client takes about a second
    if is_quick:
        return [Cell(16, 8, 16), Cell(None, 8, 8)]
    fixed = [Cell(size, clients, max(clients, count)) for size, count in fewest.items() for clients in (1, 8, 64)]
    longest = "t512c64" if model == "bge-base" else None
    return [*(cell for cell in fixed if cell.name != longest), Cell(None, 64, 128)]


def sentences(cell: Cell, seed: int) -> list[str]:
    """Return texts of as many tokens as the cell's, the two special ones included: words that are one token each."""
    vocabulary = (minilm() / "vocab.txt").read_text().split()
    words = [word for word in vocabulary if word.isascii() and word.isalpha()]
    random = np.random.RandomState(seed)
    lengths = [len(text) - NUM_SPECIAL for text in cell.texts(seed)]
    return [" ".join(words[i] for i in random.randint(0, len(words), length)) for length in lengths]
