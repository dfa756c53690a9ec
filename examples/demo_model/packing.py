r"""Training examples from conversations: token ids, loss masks, and several conversations per row.

Rows have a fixed length, so the training step is compiled once. Conversations in the same row do not attend to each
other: each is a separate segment of the attention mask.

    token ids  <|begin|> <|im_start|> user \n Hello <|im_end|> \n <|im_start|> assistant \n Hello ! <|im_end|> \n
    loss mask      0          0        0   0   0       0      0       0           0     0    1   1     1      0
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import equinox as eqx
import haliax as hax
import numpy as np
from haliax import Axis, NamedArray
from levanter.models.lm_model import LmExample
from transformers import PreTrainedTokenizerFast

from examples.demo_model.corpus import DOCUMENTS, sample_epoch
from examples.demo_model.lessons.lesson import Conversation
from examples.demo_model.model import MAX_SEQ_LEN
from examples.demo_model.tokenizer import BEGIN, END, PAD, TURN_END, TURN_START, render

FAR_SHARE = 0.3  # of the conversations
NO_SEGMENT = -1  # segment id of the padding at the end of a row
MAX_OPEN_ROWS = 16


class Example(eqx.Module):
    """Levanter's example, with the positions of its tokens."""

    lm: LmExample
    positions: NamedArray


@dataclass(frozen=True)
class Encoded:
    """One conversation or document as token ids."""

    token_ids: list[int]
    in_loss: list[bool]  # whether the model learns to predict this token
    positions: list[int]


@dataclass
class Row:
    """Encoded conversations, one after the other, in one row."""

    token_ids: list[int] = field(default_factory=list)
    in_loss: list[bool] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)

    def append(self, encoded: Encoded) -> None:
        """Add a conversation as the next segment."""
        segment = self.segments[-1] + 1 if self.segments else 0
        self.token_ids += encoded.token_ids
        self.in_loss += encoded.in_loss
        self.positions += encoded.positions
        self.segments += [segment] * len(encoded.token_ids)

    def to_example(self, Pos: Axis, pad_id: int) -> Example:
        """Return the row as an example, padded to the length of `Pos`."""
        num_pads = Pos.size - len(self.token_ids)
        token_ids = np.array(self.token_ids + [pad_id] * num_pads, dtype=np.int32)
        in_loss = np.array(self.in_loss + [False] * num_pads, dtype=np.float32)
        positions = np.array(self.positions + [0] * num_pads, dtype=np.int32)
        segments = np.array(self.segments + [NO_SEGMENT] * num_pads, dtype=np.int32)
        lm = LmExample.causal(
            tokens=hax.named(token_ids, Pos),
            # Levanter's loss weight at a position is for predicting the next token.
            loss_weight=hax.named(np.roll(in_loss, -1), Pos),
            segment_ids=hax.named(segments, Pos),
        )
        return Example(lm, hax.named(positions, Pos))


def encode_conversation(conversation: Conversation, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """Encode a conversation with the chat template; the loss covers the assistant's turns with their end tokens."""
    token_ids = tokenizer.encode(render(conversation, tokenizer), add_special_tokens=False)
    opening = tokenizer.encode(f"{TURN_START}assistant\n", add_special_tokens=False)
    turn_end = tokenizer.convert_tokens_to_ids(TURN_END)
    in_loss = [False] * len(token_ids)
    is_speaking = False
    for index, token_id in enumerate(token_ids):
        in_loss[index] = is_speaking
        if token_id == turn_end:
            is_speaking = False
        elif token_ids[index + 1 - len(opening) : index + 1] == opening:
            is_speaking = True
    return Encoded(token_ids, in_loss, list(range(len(token_ids))))


def encode_document(text: str, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """Encode plain text; the loss covers all tokens except the first."""
    token_ids = tokenizer.encode(f"{BEGIN}{text}{END}", add_special_tokens=False)
    in_loss = [False] + [True] * (len(token_ids) - 1)
    return Encoded(token_ids, in_loss, list(range(len(token_ids))))


def spread(encoded: Encoded, rng: random.Random) -> Encoded:
    """Return some conversations with a gap in their positions, as if they were as long as the context.

    Short rows teach the distances of a long context so, at no cost. Source: PoSE, arXiv 2309.10400.
    """
    if rng.random() >= FAR_SHARE:
        return encoded
    length = len(encoded.token_ids)
    cut, gap = rng.randrange(length), rng.randint(1, MAX_SEQ_LEN - length)
    positions = [*range(cut), *range(cut + gap, length + gap)]
    return Encoded(encoded.token_ids, encoded.in_loss, positions)


def pack(encoded: Iterable[Encoded], row_len: int) -> Iterator[Row]:
    """Put each conversation into the first open row with room for it; truncate one that is longer than a row."""
    open_rows: list[Row] = []
    for item in encoded:
        piece = Encoded(item.token_ids[:row_len], item.in_loss[:row_len], item.positions[:row_len])
        room_needed = len(piece.token_ids)
        row = next((row for row in open_rows if len(row.token_ids) + room_needed <= row_len), None)
        if row is None:
            if len(open_rows) == MAX_OPEN_ROWS:
                yield open_rows.pop(0)
            row = Row()
            open_rows.append(row)
        row.append(piece)
    yield from open_rows


def sample_rows(num_rows: int, row_len: int, tokenizer: PreTrainedTokenizerFast, seed: int) -> Sequence[Row]:
    """Sample epochs until there are enough rows."""
    rng = random.Random(seed)
    rows: list[Row] = []
    while len(rows) < num_rows:
        encoded = [encode_conversation(conversation, tokenizer) for conversation in sample_epoch(rng)]
        encoded += [encode_document(text, tokenizer) for text in DOCUMENTS]
        rng.shuffle(encoded)
        rows += pack((spread(item, rng) for item in encoded), row_len)
    return rows[:num_rows]


def pad_id_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the id of the padding token."""
    return tokenizer.convert_tokens_to_ids(PAD)
