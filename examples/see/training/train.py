"""Train the demo model that sees, and write it as a checkpoint of Hugging Face.

    uv run --extra levanter python -m examples.see.training.train

The model is computed by the functions that serve it (`service/models`), which JAX differentiates. The checkpoint can be
served with `MODEL_URI=<directory> make serve`.
"""

import argparse
import json
import queue
import random
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt8
from PIL import Image
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.see.drawings import COLORS, NUMBERS, QUESTIONS, SHAPES, draw, scene
from service.engine.batch import positions_of
from service.engine.request import Medium, PlacedMedium
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging, Regions
from service.models.config import HubConfig
from service.models.decoder import Decoder
from service.models.families.qwen3_vl import read_config
from service.models.interface import LayerGroupInputs
from service.models.weight_spec import WeightSpec

TURN_START, TURN_END, END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
IMAGE, IMAGE_START, IMAGE_END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
PATCH, MERGE, GRID = 16, 2, 4  # pixels of a patch; patches of an edge of a row; rows and columns of a picture
NUM_ROWS, EDGE = GRID**2, PATCH * MERGE * GRID
PAGE_SIZE, LENGTH = 16, 48  # tokens
CONTEXT_LEN = 1024
BATCH_SIZE, WARMUP_STEPS = 32, 50
MATRIX_RATE, OTHER_RATE = 0.02, 2e-3  # learning rates of Muon and of AdamW
ONE_GROUP_SHARE = 0.15  # of the training, at its begin
# Of the lessons: those without a picture.
BLIND_SHARE = 0.04
BLIND_QUESTIONS = ("Hello", "Hi!", "What do you see?", "Who are you?", "How many shapes are there?")
BLIND_ANSWER = "Show me a picture of circles, squares or triangles."


class Batch(NamedTuple):
    """Pictures, and what is asked and said about them."""

    patches: UInt8[Any, "picture patch value"]
    tokens: Int[Any, "picture token"]
    rows: Int[Any, "picture token"]  # which row of the picture takes the token's place; -1 for none
    positions: Int[Any, "3 picture token"]
    lengths: Int[Any, " picture"]
    is_answer: Float[Any, "picture token"]  # 1 if the next token is part of the answer


def make_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer in which each word of an answer is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=[
            AddedToken(token, special=True, normalized=False)
            for token in (END, TURN_START, TURN_END, IMAGE_START, IMAGE_END, IMAGE)
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [*NUMBERS, *COLORS, *SHAPES, *(f"{shape}s" for shape in SHAPES), "left of", "above", "and"]
    asked = [question for questions in QUESTIONS.values() for question in questions]
    texts = [*(f"{word} {word.capitalize()} {word}." for word in words), *asked, *BLIND_QUESTIONS, BLIND_ANSWER]
    tokenizer.train_from_iterator([*texts, "user\nassistant\nsystem\n"] * 4, trainer)
    return tokenizer


def hub_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `config.json`."""
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT_LEN,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.token_to_id(TURN_END),
    }
    vision = {
        "model_type": "qwen3_vl_vision",
        "depth": 4,
        "hidden_size": 96,
        "num_heads": 4,
        "intermediate_size": 256,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": (GRID * MERGE) ** 2,
        "deepstack_visual_indexes": [1, 2],
        "out_hidden_size": 128,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
    }
    return {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": tokenizer.token_to_id(IMAGE),
        "vision_start_token_id": tokenizer.token_to_id(IMAGE_START),
        "vision_end_token_id": tokenizer.token_to_id(IMAGE_END),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
    }


class Model:
    """The model over the tensors of its checkpoint."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._model = Decoder(read_config(HubConfig("see", dict(config))))
        encoder = self._model.encoder_of(NUM_ROWS)
        assert encoder is not None
        self._encoder = encoder

    def initial_tensors(self, seed: int) -> dict[str, jax.Array]:
        """Draw every tensor of the checkpoint."""
        rng = np.random.default_rng(seed)
        shapes = {source.name: source.shape for spec in self._model.weight_specs() for source in spec.sources}

        def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
            if len(shape) == 1:
                return np.full(shape, 0.0 if name.endswith("bias") else 1.0)
            if "pos_embed" in name:
                return rng.normal(0, 0.2, shape)
            # Both frames of a patch are the picture.
            deviation = float(np.prod(shape[1:])) ** -0.5 * (2 if "patch_embed" in name else 1)
            return rng.normal(0, deviation, shape)

        return {name: jnp.asarray(tensor(name, shape), jnp.float32) for name, shape in shapes.items()}

    def loss(self, tensors: Mapping[str, jax.Array], batch: Batch) -> Float[Array, ""]:
        """Return the mean cross-entropy of the answers' tokens."""
        weights = {spec.name: _joined(spec, tensors) for spec in self._model.weight_specs()}
        seen = jax.vmap(partial(self._encode, weights))(batch.patches)  # [picture, row, level, hidden]
        logits = self._logits(weights, seen, batch)
        of_tokens = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], batch.tokens[:, 1:])
        return jnp.sum(of_tokens * batch.is_answer[:, :-1]) / jnp.sum(batch.is_answer)

    def _encode(self, weights: Mapping[str, jax.Array], patches: UInt8[Array, "patch value"]) -> jax.Array:
        state = self._encoder.begin(weights, (patches, jnp.full(2, GRID * MERGE, jnp.int32)))
        for group in self._encoder.layer_groups:
            state = self._encoder.run_layer_group(group, [weights[name] for name in group.weights], state)
        return self._encoder.end(weights, state)

    def _logits(self, weights: Mapping[str, jax.Array], seen: jax.Array, batch: Batch) -> jax.Array:
        num_seqs, length = batch.tokens.shape
        hidden, rotation = self._model.embed(weights, batch.tokens.reshape(-1), batch.positions.reshape(3, -1))
        levels = jnp.take_along_axis(seen, jnp.maximum(batch.rows, 0)[:, :, None, None], axis=1)
        levels = levels.reshape(num_seqs * length, *seen.shape[2:])
        is_seen = (batch.rows >= 0).reshape(-1, 1)
        hidden = jnp.where(is_seen, levels[:, 0], hidden)
        added = jnp.where(is_seen[:, None], levels[:, 1:], 0).swapaxes(0, 1)
        pages = jnp.arange(num_seqs * length // PAGE_SIZE, dtype=jnp.int32).reshape(num_seqs, -1)
        regions = Regions.of_prompts(Paging(jnp.zeros(num_seqs, jnp.int32), batch.lengths, pages))
        layout = CacheLayout(pages.size, PAGE_SIZE)
        for group in self._model.layer_groups:
            inputs = LayerGroupInputs(hidden, rotation, regions, added=added)
            cache = self._model.initial_cache(layout, group)
            own = [weights[name] for name in group.weights]
            hidden, _ = self._model.run_layer_group(group, own, cache, inputs)
        return self._model.logits(weights, hidden).reshape(num_seqs, length, -1)


def _joined(spec: WeightSpec, tensors: Mapping[str, jax.Array]) -> jax.Array:
    """Return an array of the model; what the loader does with other checkpoints, as copying heads, is not needed."""
    parts = [tensors[source.name][slice(*(source.rows or (None,)))].reshape(source.view) for source in spec.sources]
    return jnp.concatenate(parts, axis=spec.concat_axis).reshape(spec.shape)


def patches_of(picture: Image.Image) -> np.ndarray:
    """Return a picture's patches as the service cuts them: those that become one row follow each other."""
    pixels = np.asarray(picture.resize((EDGE, EDGE), Image.Resampling.BICUBIC))
    cut = pixels.reshape(GRID, MERGE, PATCH, GRID, MERGE, PATCH, 3)
    return cut.transpose(0, 3, 1, 4, 6, 2, 5).reshape(NUM_ROWS * MERGE**2, -1)


class Lessons:
    """Draws, asks and answers without end."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._chosen = tokenizer, random.Random(seed)
        self._image_id = tokenizer.token_to_id(IMAGE)
        self.most_groups = 1

    def batch(self) -> Batch:
        """Return some lessons."""
        patches, tokens, rows, positions, lengths, is_answer = zip(
            *(self._lesson() for _ in range(BATCH_SIZE)), strict=True
        )
        return Batch(
            np.stack(patches),
            np.stack(tokens),
            np.stack(rows),
            np.stack(positions, axis=1),
            np.array(lengths, np.int32),
            np.stack(is_answer),
        )

    def _lesson(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, np.ndarray]:
        chosen = self._chosen
        drawn = scene(chosen, most_groups=self.most_groups)
        picture = draw(drawn, chosen)
        kind = chosen.choices(list(QUESTIONS), (0.7, 0.15, 0.15))[0]
        question, answer = chosen.choice(QUESTIONS[kind]), drawn.answer(kind)
        shown = f"{IMAGE_START}{IMAGE * NUM_ROWS}{IMAGE_END}"
        if chosen.random() < BLIND_SHARE:
            shown, question, answer = "", chosen.choice(BLIND_QUESTIONS), BLIND_ANSWER
        asked = f"{shown}{question}" if chosen.random() < 0.5 else f"{question}{shown}"
        prompt = f"{TURN_START}user\n{asked}{TURN_END}\n{TURN_START}assistant\n"
        prompt_ids, answer_ids = (self._tokenizer.encode(text).ids for text in (prompt, f"{answer}{TURN_END}"))
        ids = np.array([*prompt_ids, *answer_ids], np.int32)
        tokens, rows, is_answer = (
            np.zeros(LENGTH, np.int32),
            np.full(LENGTH, -1, np.int32),
            np.zeros(LENGTH, np.float32),
        )
        tokens[: len(ids)] = ids
        is_answer[len(prompt_ids) - 1 : len(ids) - 1] = 1
        media = []
        if shown:
            start = int(np.argmax(tokens == self._image_id))
            rows[start : start + NUM_ROWS] = np.arange(NUM_ROWS)
            media = [PlacedMedium(Medium(b"", np.zeros(0), NUM_ROWS), start, (GRID, GRID))]
        return patches_of(picture), tokens, rows, positions_of(media, 0, LENGTH), len(ids), is_answer


def batches(lessons: Lessons) -> Iterator[Batch]:
    """Yield batches that a thread makes ahead."""
    made: queue.Queue[Batch] = queue.Queue(maxsize=8)

    def make() -> None:
        while True:
            made.put(lessons.batch())

    threading.Thread(target=make, daemon=True).start()
    while True:
        yield made.get()


def make_optimizer(total_steps: int, tensors: Mapping[str, jax.Array]) -> optax.GradientTransformation:
    """Return Muon for matrices, which learn faster with it, and AdamW for embeddings, norms and biases."""

    def is_matrix(name: str) -> bool:
        return tensors[name].ndim == 2 and "embed" not in name

    def rate(highest: float) -> optax.Schedule:
        return optax.warmup_cosine_decay_schedule(0, highest, WARMUP_STEPS, total_steps)

    of_matrices = optax.contrib.muon(rate(MATRIX_RATE), weight_decay=0.01)
    others = optax.adamw(rate(OTHER_RATE), b2=0.98, weight_decay=0.01)
    kinds = {name: "matrix" if is_matrix(name) else "other" for name in tensors}
    both = optax.multi_transform({"matrix": of_matrices, "other": others}, kinds)
    return optax.chain(optax.clip_by_global_norm(1.0), both)


def train(total_steps: int, tokenizer: Tokenizer, output: Path, initial: Path | None) -> None:
    """Train for so many steps, from a checkpoint if one is given, and write the checkpoint."""
    config = hub_config(tokenizer)
    model = Model(config)
    lessons = Lessons(tokenizer, seed=0 if initial is None else 1)
    tensors = model.initial_tensors(seed=0)
    one_group_share = ONE_GROUP_SHARE
    if initial is not None:
        stored = load_file(initial / "model.safetensors")
        tensors = {name: jnp.asarray(stored[name], jnp.float32) for name in tensors}
        one_group_share = 0.0
    optimizer = make_optimizer(total_steps, tensors)
    state = optimizer.init(tensors)

    @jax.jit
    def step(tensors: dict[str, jax.Array], state: optax.OptState, batch: Batch) -> tuple:
        value, gradients = jax.value_and_grad(model.loss)(tensors, batch)
        updates, state = optimizer.update(gradients, state, tensors)
        return optax.apply_updates(tensors, updates), state, value

    began_s, average = time.monotonic(), 0.0
    for num_steps, batch in enumerate(batches(lessons)):
        done = num_steps / total_steps
        if done >= 1:
            break
        lessons.most_groups = 1 if done < one_group_share else 2
        tensors, state, value = step(tensors, state, batch)
        average += (float(value) - average) * (0.05 if num_steps else 1)
        if num_steps % 50 == 0:
            print(f"step {num_steps}, {time.monotonic() - began_s:.0f} s: loss {average:.3f}", flush=True)
        if num_steps % 300 == 299:
            export(tensors, tokenizer, config, output)
    export(tensors, tokenizer, config, output)


def export(tensors: Mapping[str, jax.Array], tokenizer: Tokenizer, config: Mapping[str, Any], output: Path) -> None:
    """Write the checkpoint in bfloat16."""
    output.mkdir(parents=True, exist_ok=True)
    narrow = {name: np.asarray(array).astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    save_file(narrow, output / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(output / "tokenizer.json"))
    normal = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    preprocessor = {
        "size": {"shortest_edge": EDGE**2, "longest_edge": EDGE**2},
        **normal,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
    }
    of_tokenizer = {"eos_token": TURN_END, "pad_token": END, "model_max_length": CONTEXT_LEN}
    for name, content in (
        ("config", config),
        ("preprocessor_config", preprocessor),
        ("tokenizer_config", of_tokenizer),
        ("generation_config", {"eos_token_id": config["text_config"]["eos_token_id"]}),
    ):
        (output / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (output / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("examples/see/model"), help="the checkpoint")
    parser.add_argument("--steps", type=int, default=3500, help="training steps")
    parser.add_argument("--initial", type=Path, help="the checkpoint of an earlier run, to train further")
    arguments = parser.parse_args()
    train(arguments.steps, make_tokenizer(), arguments.output, arguments.initial)


if __name__ == "__main__":
    main()
