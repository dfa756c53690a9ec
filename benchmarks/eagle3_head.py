"""Train an EAGLE-3 head for the demo model, and count how many tokens a step gives with it.

    python -m benchmarks.eagle3_head [--steps 220] [--minutes 18]

The head learns what the demo model would say, on conversations of the demo model's own corpus, as EAGLE 3 does: of each
position some tokens further on, each from the head's own result for the one before it. Then the demo model answers
other questions, greedily, with the head at DRAFT_MODEL_URI.
Source: Li et al. 2025, arXiv:2503.01840 (training-time test); SpecForge `core/eagle3.py`.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from benchmarks.machine import begun
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.schedule.speculation import Speculation
from service.observability.metrics import Metrics
from service.observability.model_metrics import ModelMetrics
from service.settings.sources import load_settings
from service.start.context import StartContext
from service.start.load import ModelStart
from service.start.progress import StartProgress

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "service" / "demo"
TAPS = (1, 2, 3)  # layers of the demo model, before which its hidden states are taken
FORESEEN = 2  # tokens that are foreseen of each position in training
DECAY = 0.8  # of the weight of each further one
BATCH, LENGTH = 8, 128
LEARNING_RATE = 2e-3

type Tensors = dict[str, Array]


def rms(x: Array, weight: Array, eps: float) -> Array:
    """Normalize."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps) * weight


class Demo:
    """The demo model over whole texts."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = json.loads((DEMO / "config.json").read_text())
        stored = load_file(DEMO / "model.safetensors")
        self.tensors: Tensors = {name: jnp.asarray(tensor.astype(np.float32)) for name, tensor in stored.items()}
        self.eps: float = self.config["rms_norm_eps"]

    @property
    def embed(self) -> Float[Array, "vocab hidden"]:
        """The embeddings, which are the head, too."""
        return self.tensors["model.embed_tokens.weight"]

    def rotated(self, x: Float[Array, "... position head dim"], shift: int = 0) -> Array:
        """Turn queries or keys by their positions."""
        half = x.shape[-1] // 2
        positions = jnp.arange(x.shape[-3])[:, None] + shift
        angles = (positions * self.config["rope_theta"] ** (-jnp.arange(half) / half))[:, None]
        first, second = x[..., :half], x[..., half:]
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def heads(self, tensors: Tensors, prefix: str, read: Array) -> tuple[Array, Array, Array]:
        """Return queries, keys and values, as many keys as queries."""
        dim, group = self.config["head_dim"], self.config["num_attention_heads"] // self.config["num_key_value_heads"]

        def project(name: str) -> Array:
            return (read @ tensors[f"{prefix}self_attn.{name}.weight"].T).reshape(*read.shape[:-1], -1, dim)

        query, key, value = (project(name) for name in ("q_proj", "k_proj", "v_proj"))
        return query, jnp.repeat(key, group, axis=-2), jnp.repeat(value, group, axis=-2)

    def rest(self, tensors: Tensors, prefix: str, residual: Array, attended: Array) -> Array:
        """Return a layer's result after its heads."""
        hidden = residual + attended.reshape(*residual.shape[:-1], -1) @ tensors[f"{prefix}self_attn.o_proj.weight"].T
        x = rms(hidden, tensors[f"{prefix}post_attention_layernorm.weight"], self.eps)
        gate, up = (x @ tensors[f"{prefix}mlp.{name}.weight"].T for name in ("gate_proj", "up_proj"))
        return hidden + (jax.nn.silu(gate) * up) @ tensors[f"{prefix}mlp.down_proj.weight"].T

    def states(self, token_ids: Int[Array, "text position"]) -> tuple[Array, Array]:
        """Return what the head reads of each position, and the logits."""
        hidden, before = self.embed[token_ids], []
        for number in range(self.config["num_hidden_layers"]):
            before.append(hidden)
            prefix = f"model.layers.{number}."
            read = rms(hidden, self.tensors[f"{prefix}input_layernorm.weight"], self.eps)
            query, key, value = self.heads(self.tensors, prefix, read)
            scores = causal(self.rotated(query), self.rotated(key))
            attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
            hidden = self.rest(self.tensors, prefix, hidden, attended)
        logits = rms(hidden, self.tensors["model.norm.weight"], self.eps) @ self.embed.T
        return jnp.concatenate([before[tap] for tap in TAPS], axis=-1), logits


def causal(query: Array, key: Array) -> Float[Array, "text head query key"]:
    """Return the scores of keys up to each query's position."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    return jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)


def initial_head(demo: Demo, seed: int) -> Tensors:
    """Return a head that begins with the last layer of the demo model."""
    keys, size = iter(jax.random.split(jax.random.key(seed), 9)), demo.config["hidden_size"]
    last = f"model.layers.{demo.config['num_hidden_layers'] - 1}."
    head = {
        f"midlayer.{name.removeprefix(last)}": tensor for name, tensor in demo.tensors.items() if name.startswith(last)
    }
    for name in ("q_proj", "k_proj", "v_proj"):
        of_hidden = head[f"midlayer.self_attn.{name}.weight"]
        of_embedding = jax.random.normal(next(keys), of_hidden.shape) * size**-0.5
        head[f"midlayer.self_attn.{name}.weight"] = jnp.concatenate([of_embedding, of_hidden], axis=1)
    fc = jax.random.normal(next(keys), (size, 3 * size)) * 0.1 * size**-0.5
    return head | {
        "midlayer.hidden_norm.weight": head["midlayer.input_layernorm.weight"],
        "fc.weight": fc.at[:, 2 * size :].add(jnp.eye(size)),
        "norm.weight": demo.tensors["model.norm.weight"],
        "lm_head.weight": demo.embed,
    }


def loss_of(demo: Demo, head: Tensors, token_ids: Int[Array, "text position"], pad_id: int) -> Float[Array, ""]:
    """Return the cross-entropy between what the demo model says and what the head foresees."""
    read, logits = demo.states(token_ids)
    said, hidden = jax.nn.softmax(jax.lax.stop_gradient(logits)), jax.lax.stop_gradient(read) @ head["fc.weight"].T
    length, keys, values = token_ids.shape[1], [], []
    total = jnp.float32(0)
    for place in range(FORESEEN):
        # At an index stands the token `place + 1` positions after it, and what is foreseen is the one after that.
        following = jnp.roll(token_ids, -1 - place, axis=1)
        is_there = (jnp.arange(length) < length - 2 - place) & (following != pad_id)
        normal = rms(hidden, head["midlayer.hidden_norm.weight"], demo.eps)
        embedded = rms(demo.embed[following], head["midlayer.input_layernorm.weight"], demo.eps)
        query, key, value = demo.heads(head, "midlayer.", jnp.concatenate([embedded, normal], axis=-1))
        query, key = demo.rotated(query, place), demo.rotated(key, place)
        keys.append(key)
        values.append(value)
        own = [jnp.einsum("bqhd,bqhd->bhq", query, each) * query.shape[-1] ** -0.5 for each in keys[1:]]
        scores = jnp.concatenate([causal(query, keys[0]), *(each[..., None] for each in own)], axis=-1)
        shares = jax.nn.softmax(scores, axis=-1)
        attended = jnp.einsum("bhqk,bkhd->bqhd", shares[..., :length], values[0])
        for number, each in enumerate(values[1:]):
            attended = attended + jnp.swapaxes(shares[..., length + number], 1, 2)[..., None] * each
        hidden = demo.rest(head, "midlayer.", hidden, attended)
        foreseen = jax.nn.log_softmax(rms(hidden, head["norm.weight"], demo.eps) @ head["lm_head.weight"].T)
        entropy = -jnp.sum(jnp.roll(said, -1 - place, axis=1) * foreseen, axis=-1)
        total += DECAY**place * jnp.sum(entropy * is_there) / jnp.maximum(jnp.sum(is_there), 1)
    return total


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Int[np.ndarray, "text position"]]:
    """Yield texts of the corpus, cut anywhere."""
    from examples.demo_model.corpus import sample_epoch
    from examples.demo_model.packing import encode_conversation

    draw, rows = random.Random(seed), []
    pad_id = tokenizer.convert_tokens_to_ids("<|pad|>")
    while True:
        for conversation in sample_epoch(draw):
            token_ids = encode_conversation(conversation, tokenizer).token_ids
            rows.append((token_ids + [pad_id] * LENGTH)[:LENGTH])
            if len(rows) == BATCH:
                yield np.array(rows, np.int32)
                rows = []


def train(demo: Demo, tokenizer: PreTrainedTokenizerFast, steps: int, minutes: float) -> Tensors:
    """Return a head that was trained for a number of steps, or as many as fit the time."""
    head, pad_id = initial_head(demo, seed=0), tokenizer.convert_tokens_to_ids("<|pad|>")
    schedule = optax.cosine_decay_schedule(LEARNING_RATE, steps, alpha=0.05)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    state = optimizer.init(head)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(head: Tensors, state: Any, token_ids: Array) -> tuple[Tensors, Any, Array]:
        loss, gradients = jax.value_and_grad(lambda head: loss_of(demo, head, token_ids, pad_id))(head)
        changes, state = optimizer.update(gradients, state)
        return {name: head[name] + changes[name] for name in head}, state, loss

    head = jax.tree.map(jnp.array, head)  # of its own, to be donated
    begun_s = time.perf_counter()
    for step, token_ids in enumerate(batches(tokenizer, seed=1)):
        head, state, loss = update(head, state, token_ids)
        if step % 20 == 0:
            print(f"step {step}: loss {float(loss):.3f}, {time.perf_counter() - begun_s:.0f} s", flush=True)
        if step + 1 == steps or time.perf_counter() - begun_s > 60 * minutes:
            break
    return head


def write_head(folder: Path, demo: Demo, head: Tensors) -> None:
    """Write a head in the published format."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": demo.config["vocab_size"],
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS]},
    }
    (folder / "config.json").write_text(json.dumps(demo.config | own, indent=1))
    save_file({name: np.asarray(tensor) for name, tensor in head.items()}, folder / "model.safetensors")


def questions(tokenizer: PreTrainedTokenizerFast, count: int) -> Iterator[tuple[int, ...]]:
    """Yield prompts of conversations of another seed than those that the head has read."""
    from examples.demo_model.corpus import sample_epoch
    from examples.demo_model.lessons.lesson import Conversation
    from examples.demo_model.tokenizer import render

    for conversation in sample_epoch(random.Random(77))[:count]:
        roles = [message["role"] for message in conversation.messages]
        asked = Conversation(conversation.messages[: roles.index("assistant")], conversation.tools)
        text = render(asked, tokenizer, for_answer=True)
        yield tuple(tokenizer.encode(text, add_special_tokens=False))


def measure(folder: Path, tokenizer: PreTrainedTokenizerFast, num_questions: int) -> dict[str, Any]:
    """Return how many tokens a step gives, of greedy answers one after the other."""
    settings = {"draft_model_uri": str(folder), "speculation": "draft", "max_num_seqs": 1, "max_model_len": 1024}
    metrics = Metrics()
    context = StartContext(load_settings({**settings, "log_format": "text"}, None), metrics, StartProgress(metrics))
    start = ModelStart(context)
    running: Any = start.wait_for_model().running
    start.wait_until_ready()
    running.thread.stop()
    runner, drafter = running._runners[0], running._drafters[0]
    policy = Speculation(runner.shapes, (), model=drafter, is_adaptive=False)
    engine = Engine(runner, runner.shapes, ModelMetrics(), max_requests=9, speculation=policy)
    stops = frozenset(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|end|>"]))

    async def answer_all() -> int:
        num_tokens = 0
        for number, prompt in enumerate(questions(tokenizer, num_questions)):
            request = Request(str(number), prompt, 96, Sampling(temperature=0.0), stops)
            async for event in engine.submit(request):
                num_tokens += len(event.token_ids)
        return num_tokens

    engine.start()
    num_tokens = asyncio.run(answer_all())
    engine.stop()
    return {
        "tokens": num_tokens,
        "steps_with_drafts": policy.num_drafts,
        "draft_tokens": policy.num_draft_tokens,
        "accepted_at": policy.num_accepted_at,
        "tokens_per_step": round(1 + policy.num_accepted_tokens / max(policy.num_drafts, 1), 3),
    }


def main() -> None:
    """Train, write and measure a head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=220, help="0: measure the head that is there")
    parser.add_argument("--minutes", type=float, default=18)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--output", type=Path, default=ROOT / ".cache" / "bench" / "demo-eagle3")
    options = parser.parse_args()
    backend = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    template = (DEMO / "chat_template.jinja").read_text()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)
    results, begun_s = begun("benchmarks.eagle3_head"), time.perf_counter()
    if options.steps:
        demo = Demo()
        write_head(options.output, demo, train(demo, tokenizer, options.steps, options.minutes))
        results["trained_s"] = round(time.perf_counter() - begun_s)
    print(json.dumps(results | measure(options.output, tokenizer, options.questions)))


if __name__ == "__main__":
    main()
