"""Check the answers of the exported model.

    uv run --extra levanter python -m examples.demo_model.check

Every lesson is checked with one forward pass over its text: a greedy answer equals the lesson if each token of the
lesson is the most likely one after its predecessors. Then a few questions are answered token by token and printed.
Both use Levanter's forward pass in float32 with the stored weights. The check fails below 95 % of the lessons.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from levanter.layers.attention import AttentionMask
from levanter.models.llama import LlamaLMHeadModel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from examples.demo_model.corpus import LESSONS, canonical
from examples.demo_model.lessons.dialogues import DIALOGUES
from examples.demo_model.lessons.lesson import Conversation, user
from examples.demo_model.model import load
from examples.demo_model.packing import encode_conversation
from examples.demo_model.questions import PINNED, SHOWN
from examples.demo_model.tokenizer import END, TURN_END, render

RECALL_LEN, ANSWER_LEN = 1024, 384  # tokens; the longest conversation fits, and the longest question with its answer
ROWS_AT_ONCE = 16
DIALOGUES_SAMPLED = 20  # per kind
EXACT_FRACTION_REQUIRED = 0.95
MARGIN_REQUIRED = 1.0  # logits, for pinned answers: more than other kernels or dtypes change


@dataclass(frozen=True)
class Recall:
    """The result for one lesson."""

    conversation: Conversation
    is_exact: bool
    margin: float  # logits: the smallest lead of a token of the lesson over all others


@dataclass(frozen=True)
class Answer:
    """An answer of the model."""

    text: str
    has_ended: bool  # with an end-of-turn token, not at the length limit


@eqx.filter_jit
def logits_of(model: LlamaLMHeadModel, token_ids: jax.Array) -> jax.Array:
    """Return the logits [row, position, vocab] of rows of token ids."""
    Row, Position = Axis("batch", token_ids.shape[0]), Axis("position", token_ids.shape[1])
    logits = model(hax.named(token_ids, (Row, Position)), AttentionMask.causal())
    return logits.rearrange((Row, Position, model.Vocab)).array


@eqx.filter_jit
def leads_of(model: LlamaLMHeadModel, token_ids: jax.Array) -> jax.Array:
    """Return each token's lead in logits over all others, given its predecessors; negative if another one leads."""
    logits = logits_of(model, token_ids)[:, :-1]
    targets = token_ids[:, 1:, None]
    own = jnp.take_along_axis(logits, targets, axis=-1)[..., 0]
    is_target = jnp.arange(logits.shape[-1]) == targets
    best_other = jnp.where(is_target, -jnp.inf, logits).max(axis=-1)
    return jnp.pad(own - best_other, ((0, 0), (1, 0)))


@eqx.filter_jit
def likeliest_after(model: LlamaLMHeadModel, token_ids: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return the most likely token after the first `lengths` tokens of each row."""
    logits = logits_of(model, token_ids)
    return logits[jnp.arange(len(lengths)), lengths - 1].argmax(axis=-1)


def padded(rows: Sequence[Sequence[int]], row_len: int) -> np.ndarray:
    """Return token ids in an array of fixed shape; with causal attention the padding has no effect."""
    array = np.zeros((ROWS_AT_ONCE, row_len), dtype=np.int32)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return array


def recall(
    model: LlamaLMHeadModel, tokenizer: PreTrainedTokenizerFast, conversations: Iterable[Conversation]
) -> Iterator[Recall]:
    """Compare the model's greedy answer with the assistant's in each conversation."""
    for group in batched(conversations, ROWS_AT_ONCE):
        encoded = [encode_conversation(conversation, tokenizer) for conversation in group]
        leads = np.asarray(leads_of(model, padded([item.token_ids for item in encoded], RECALL_LEN)))
        for conversation, item, row in zip(group, encoded, leads, strict=False):
            margin = float(row[: len(item.in_loss)][item.in_loss].min())
            yield Recall(conversation, margin > 0, margin)


def answer(
    model: LlamaLMHeadModel, tokenizer: PreTrainedTokenizerFast, conversations: Sequence[Conversation]
) -> Iterator[Answer]:
    """Return the greedy answers."""
    stops = set(tokenizer.convert_tokens_to_ids([END, TURN_END]))
    for group in batched(conversations, ROWS_AT_ONCE):
        prompts = [
            tokenizer.encode(render(conversation, tokenizer, for_answer=True), add_special_tokens=False)
            for conversation in group
        ]
        rows = [list(prompt) for prompt in prompts]
        while open_rows := [row for row in rows if row[-1] not in stops and len(row) < ANSWER_LEN]:
            lengths = np.array([len(row) for row in rows] + [1] * (ROWS_AT_ONCE - len(rows)))
            likeliest = np.asarray(likeliest_after(model, padded(rows, ANSWER_LEN), lengths))
            for row, token_id in zip(rows, likeliest, strict=False):
                if any(row is open_row for open_row in open_rows):
                    row.append(int(token_id))
        for prompt, row in zip(prompts, rows, strict=True):
            text = tokenizer.decode(row[len(prompt) :], skip_special_tokens=True)
            yield Answer(text, row[-1] in stops)


def check_lessons(model: LlamaLMHeadModel, tokenizer: PreTrainedTokenizerFast) -> float:
    """Print the number of exactly recalled lessons by kind; return the fraction of all lessons."""
    rng = random.Random("check")
    taught = {name: [canonical(lesson) for lesson in lessons] for name, lessons in LESSONS.items()}
    taught |= {kind.__name__: [kind(rng) for _ in range(DIALOGUES_SAMPLED)] for kind in DIALOGUES}
    recalls = {name: list(recall(model, tokenizer, conversations)) for name, conversations in taught.items()}
    for name, group in recalls.items():
        print(f"{name:22} {sum(item.is_exact for item in group):4} of {len(group):4} exact")
        for item in group:
            if not item.is_exact:
                print(f"    not exact by {-item.margin:.2f} logits: {item.conversation.messages[-2]['content']}")
    everything = [item for group in recalls.values() for item in group]
    return sum(item.is_exact for item in everything) / len(everything)


def show_answers(model: LlamaLMHeadModel, tokenizer: PreTrainedTokenizerFast) -> list[Answer]:
    """Print a few questions and the model's answers."""
    answers = list(answer(model, tokenizer, SHOWN))
    for conversation, said in zip(SHOWN, answers, strict=True):
        print(f"\n> {' / '.join(message.get('content') or '(call)' for message in conversation.messages)}")
        print(said.text if said.has_ended else f"{said.text} (did not end)")
    return answers


def pin_answers(
    model: LlamaLMHeadModel, tokenizer: PreTrainedTokenizerFast, answers: Sequence[Answer], path: Path
) -> None:
    """Write the pinned questions and their answers for the tests of the service.

    Raises:
        ValueError: An answer is too uncertain to be the same on other hardware.
    """
    pinned = list(zip(PINNED, answers, strict=False))
    said = [Conversation((user(question), {"role": "assistant", "content": item.text})) for question, item in pinned]
    for (question, item), recalled in zip(pinned, recall(model, tokenizer, said), strict=True):
        print(f"{recalled.margin:6.2f} logits ahead: {question}")
        if recalled.margin < MARGIN_REQUIRED or not item.has_ended:
            raise ValueError(f"the answer to {question!r} is not sure enough to be pinned")
    entries = [{"question": question, "answer": item.text} for question, item in pinned]
    path.write_text(json.dumps(entries, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Check the lessons, print some answers, and pin some with `--pin`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("service/demo"), help="the Hugging Face checkpoint")
    parser.add_argument("--pin", type=Path, help="file for the answers that tests rely on")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = load(arguments.model, tokenizer)
    exact_fraction = check_lessons(model, tokenizer)
    answers = show_answers(model, tokenizer)
    print(f"\n{exact_fraction:.1%} of the lessons are recalled exactly.")
    print(f"{sum(item.has_ended for item in answers)} of {len(answers)} answers ended by themselves.")
    if arguments.pin is not None:
        pin_answers(model, tokenizer, answers, arguments.pin)
    if exact_fraction < EXACT_FRACTION_REQUIRED or not all(item.has_ended for item in answers):
        sys.exit(1)


if __name__ == "__main__":
    main()
