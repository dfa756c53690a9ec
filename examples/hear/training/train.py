"""Train the demo model that hears, and write it as a checkpoint of Hugging Face.

    uv run --extra levanter python -m examples.hear.training.train

It needs espeak-ng (Debian: `apt-get install espeak-ng`). The checkpoint can be served with
`MODEL_URI=<directory> make serve`.
"""

import argparse
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from examples.hear.training.lessons import NUM_MELS, POSITIONS_PER_S, Lesson, Word, lessons, speak_phrase
from examples.hear.training.network import (
    ALIGNMENT_HEADS,
    CONTEXT_LEN,
    DECODER_LAYERS,
    ENCODER_LAYERS,
    MLP_WIDTH,
    NUM_HEADS,
    NUM_POSITIONS,
    WIDTH,
    Batch,
    Weights,
    initial_weights,
    loss,
    read_weights,
)
from examples.hear.training.speaker import Speaker
from examples.hear.training.words import (
    END,
    NO_SPEECH,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    TIMESTAMPS_PER_S,
    WINDOW_S,
    WORDS,
    make_tokenizer,
)
from service.models.speech import sinusoids

BATCH_SIZE = 8
LEARNING_RATE, WARMUP_STEPS = 1.0e-3, 100
SINGLE_PHRASE_SHARE = 0.2  # of the training, at its begin
# Of the lessons: those that begin after earlier words, and those without timestamps.
PREVIOUS_SHARE, UNTIMED_SHARE = 0.35, 0.15
TIMESTAMP_WEIGHT = 0.4  # of a target; a word has 1
NUM_PHRASES = 3000


class Writer:
    """Lessons to the tokens that a decoder learns from them."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        vocabulary = tokenizer.get_vocab()
        self.vocab_size = tokenizer.get_vocab_size()
        self._words = {word: tokenizer.encode(f" {word}", add_special_tokens=False).ids[0] for word in WORDS}
        names = (END, START, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS)
        self._end, self._start, self._previous, self._no_speech, self._untimed = (vocabulary[name] for name in names)
        self._rng = np.random.default_rng(seed)

    def batch(self, batch: Sequence[Lesson]) -> Batch:
        """Return some lessons as arrays."""
        rows = [self._row(lesson) for lesson in batch]
        inputs, targets, weights, places = (_padded(column, CONTEXT_LEN) for column in zip(*rows, strict=True))
        return Batch(
            np.stack([lesson.features for lesson in batch]),
            inputs.astype(np.int32),
            targets.astype(np.int32),
            weights,
            places,
            np.stack([_named(lesson) for lesson in batch]),
        )

    def _row(self, lesson: Lesson) -> tuple[list[int], list[int], list[float], list[float]]:
        """Return the inputs and the targets, the weights of those, and where they are said."""
        rng = self._rng
        prompt = [self._start]
        if rng.random() < PREVIOUS_SHARE:
            earlier = rng.choice(list(self._words.values()), rng.integers(1, CONTEXT_LEN // 2 - 1))
            prompt = [self._previous, *earlier.tolist(), self._start]
        is_timed = rng.random() >= UNTIMED_SHARE
        said: list[tuple[int, float, float]] = []  # token, weight, place
        for phrase in lesson.phrases:
            words = [word for word in phrase if word.end_s <= WINDOW_S]
            if words and is_timed:
                said.append((self._time(words[0].begin_s), TIMESTAMP_WEIGHT, -1))
            said += [(self._words[word.text], 1.0, _middle(word) * POSITIONS_PER_S) for word in words]
            if words == list(phrase) and is_timed:
                said.append((self._time(words[-1].end_s), TIMESTAMP_WEIGHT, -1))
        following = [token for token, _, _ in said]
        if not lesson.phrases:
            said, following = [(self._no_speech, 1.0, -1)], [self._time(0.0)]
        elif not is_timed:
            prompt.append(self._untimed)
        room = CONTEXT_LEN - len(prompt)
        said, following = [*said, (self._end, 1.0, -1.0)][:room], following[:room]
        before = len(prompt) - 1
        return (
            [*prompt, *following],
            [*([0] * before), *(token for token, _, _ in said)],
            [*([0.0] * before), *(weight for _, weight, _ in said)],
            [*([-1.0] * before), *(place for _, _, place in said)],
        )

    def _time(self, seconds: float) -> int:
        return self._untimed + 1 + round(min(seconds, WINDOW_S) * TIMESTAMPS_PER_S)


def _middle(word: Word) -> float:
    return (word.begin_s + word.end_s) / 2


def _named(lesson: Lesson) -> np.ndarray:
    """Return the number of the word at each position of the encoder."""
    named = np.zeros(NUM_POSITIONS, np.int32)
    for word in (word for phrase in lesson.phrases for word in phrase):
        begin, end = round(word.begin_s * POSITIONS_PER_S), round(word.end_s * POSITIONS_PER_S)
        named[begin:end] = WORDS.index(word.text) + 1
    return named


def _padded(rows: Sequence[Sequence[float]], width: int) -> np.ndarray:
    padded = np.zeros((len(rows), width), np.float32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row[:width]
    return padded


def batches(make_lessons: Callable[[int], Iterator[Lesson]], tokenizer: Tokenizer) -> Iterator[Batch]:
    """Yield batches that a thread makes ahead."""
    made: queue.Queue[Batch] = queue.Queue(maxsize=8)

    def make() -> None:
        writer, source = Writer(tokenizer, 0), make_lessons(0)
        while True:
            made.put(writer.batch([next(source) for _ in range(BATCH_SIZE)]))

    threading.Thread(target=make, daemon=True).start()
    while True:
        yield made.get()


def train(total_steps: int, tokenizer: Tokenizer, output: Path, initial: Path | None = None) -> None:
    """Train for so many steps, from the weights of a checkpoint if there is one, and write the checkpoint."""
    speaker = Speaker()
    phrases = [speak_phrase(speaker, seed) for seed in range(NUM_PHRASES)]
    weights = initial_weights(tokenizer.get_vocab_size(), len(WORDS), seed=0)
    if initial is not None:
        weights |= read_weights(initial)
    began_s, most = time.monotonic(), 1
    rate = optax.inject_hyperparams(optax.adamw)(learning_rate=LEARNING_RATE, b2=0.98, weight_decay=0.01)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), rate)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Weights, state: optax.OptState, batch: Batch, learning_rate: jax.Array) -> tuple:
        gradients, parts = jax.grad(loss, has_aux=True)(weights, batch)
        state[1].hyperparams["learning_rate"] = learning_rate
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, parts

    def make_lessons(seed: int) -> Iterator[Lesson]:
        single, any_number = lessons(phrases, seed, most_phrases=1), lessons(phrases, seed + 1)
        while True:
            yield next(single if most == 1 else any_number)

    averages: dict[str, float] = {}
    for num_steps, batch in enumerate(batches(make_lessons, tokenizer)):
        done = num_steps / total_steps
        if done >= 1:
            break
        most = 1 if done < SINGLE_PHRASE_SHARE and initial is None else 3
        factor = min(1.0, (num_steps + 1) / WARMUP_STEPS) * (0.5 + 0.5 * np.cos(np.pi * done))
        weights, state, parts = step(weights, state, batch, jnp.float32(LEARNING_RATE * factor))
        for name, value in parts.items():
            averages[name] = averages.get(name, float(value)) * 0.95 + float(value) * 0.05
        if num_steps % 50 == 0:
            told = ", ".join(f"{name} {value:.3f}" for name, value in averages.items())
            print(f"step {num_steps}, {time.monotonic() - began_s:.0f} s: {told}", flush=True)
        if num_steps % 300 == 299:
            export(weights, tokenizer, output)
    export(weights, tokenizer, output)


def export(weights: Weights, tokenizer: Tokenizer, output: Path) -> None:
    """Write the checkpoint in bfloat16."""
    output.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": np.asarray(array) for name, array in weights.items() if not name.startswith("naming")}
    tensors["model.encoder.embed_positions.weight"] = sinusoids(NUM_POSITIONS, WIDTH)
    tensors = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    vocabulary = tokenizer.get_vocab()
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": WIDTH,
        "encoder_layers": ENCODER_LAYERS,
        "encoder_attention_heads": NUM_HEADS,
        "encoder_ffn_dim": MLP_WIDTH,
        "decoder_layers": DECODER_LAYERS,
        "decoder_attention_heads": NUM_HEADS,
        "decoder_ffn_dim": MLP_WIDTH,
        "vocab_size": tokenizer.get_vocab_size(),
        "num_mel_bins": NUM_MELS,
        "max_source_positions": NUM_POSITIONS,
        "max_target_positions": CONTEXT_LEN,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "decoder_start_token_id": vocabulary[START],
        **{f"{name}_token_id": vocabulary[END] for name in ("bos", "eos", "pad")},
    }
    generation = {
        "alignment_heads": list(map(list, ALIGNMENT_HEADS)),
        "is_multilingual": False,
        "no_timestamps_token_id": vocabulary[NO_TIMESTAMPS],
    }
    features = {"feature_size": NUM_MELS, "sampling_rate": 16_000, "chunk_length": WINDOW_S}
    for name, content in (
        ("config", config),
        ("generation_config", generation),
        ("preprocessor_config", features),
    ):
        (output / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    tokenizer.save(str(output / "tokenizer.json"))


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("examples/hear/model"), help="the checkpoint")
    parser.add_argument("--steps", type=int, default=5000, help="training steps")
    parser.add_argument("--initial", type=Path, help="an earlier checkpoint, to go on from")
    arguments = parser.parse_args()
    train(arguments.steps, make_tokenizer(), arguments.output, arguments.initial)


if __name__ == "__main__":
    main()
