"""Train a tiny Llama with Levanter on a poem, and keep the run without the state of its optimizer.

    make .venv/dev && .venv/bin/python -m examples.levanter_run.train

A minute on two cores. The run has what Levanter leaves: `step-N`, and the YAML of its configuration beside it.
"""

import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import jmp
import optax
import yaml
from haliax import Axis, NamedArray, named
from levanter.checkpoint import CheckpointerConfig, save_checkpoint
from levanter.data.dataset import ListAsyncDataset
from levanter.layers.attention import AttentionBackend, AttentionMask
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel
from levanter.optim.config import AdamConfig
from levanter.tracker.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

RUN = Path(__file__).with_name("run")
# Jane Taylor, The Star, 1806.
POEM = """\
Twinkle, twinkle, little star,
How I wonder what you are!
Up above the world so high,
Like a diamond in the sky.

When the blazing sun is gone,
When he nothing shines upon,
Then you show your little light,
Twinkle, twinkle, all the night.
"""
END = "<|end|>"
MODEL = {
    "type": "llama",
    "max_seq_len": 256,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "tie_word_embeddings": True,
}
NUM_STEPS, BATCH_SIZE, ROW_LEN, LEARNING_RATE = 400, 8, 128, 0.02


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of the poem."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([POEM], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, model_max_length=MODEL["max_seq_len"])


def next_token_loss(model: LlamaLMHeadModel, tokens: NamedArray, *, key: jax.Array | None = None) -> jax.Array:
    """Return the mean cross-entropy in nats."""
    logits = model(tokens, AttentionMask.causal(), key=key).array.astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[..., :-1, :], tokens.array[..., 1:])
    return jnp.mean(losses)


def train(tokenizer: PreTrainedTokenizerFast, logs: Path) -> tuple[LlamaLMHeadModel, float]:
    """Return the trained model and its last loss."""
    config = TrainerConfig(
        id="levanter_run",
        train_batch_size=BATCH_SIZE,
        num_train_steps=NUM_STEPS,
        tracker=NoopConfig(),
        require_accelerator=False,
        mp=jmp.get_policy("float32"),
        load_checkpoint=False,
        log_dir=logs,
        log_jaxprs=False,
        log_xla_hlo=False,
        checkpointer=CheckpointerConfig(base_path=str(logs), save_interval=None, keep=None),
    )
    config.initialize()
    text = [*tokenizer.encode(POEM), tokenizer.eos_token_id]
    stream = text * (NUM_STEPS * BATCH_SIZE * ROW_LEN // len(text) + 2)
    position = Axis("position", ROW_LEN)
    # Each row begins elsewhere in the poem.
    rows = [
        named(jnp.asarray(stream[at : at + ROW_LEN], jnp.int32), position)
        for at in range(0, NUM_STEPS * BATCH_SIZE * 7, 7)
    ]
    trainer = Trainer(config, AdamConfig(learning_rate=LEARNING_RATE, warmup=20).build(NUM_STEPS), next_token_loss)
    shape = {name: value for name, value in MODEL.items() if name != "type"}
    llama = LlamaConfig(**shape, attn_backend=AttentionBackend.VANILLA, gradient_checkpointing=False)
    vocabulary = Axis("vocab", len(tokenizer))
    with trainer:
        state = trainer.initial_state(
            jax.random.PRNGKey(1), model_init=lambda: llama.build(vocabulary, key=jax.random.PRNGKey(0))
        )
        info = trainer.train(state, trainer.data_loader(ListAsyncDataset(rows)))
    return info.model, float(info.loss)


def main() -> None:
    """Train, and write the run."""
    tokenizer = train_tokenizer()
    with tempfile.TemporaryDirectory() as logs:
        model, loss = train(tokenizer, Path(logs))
    print(f"the last loss is {loss:.4f} nats")
    if RUN.exists():
        shutil.rmtree(RUN)
    RUN.mkdir()
    save_checkpoint({"model": model}, NUM_STEPS, str(RUN / f"step-{NUM_STEPS}"), is_temporary=False)
    (RUN / "config.yaml").write_text(yaml.safe_dump({"model": MODEL}, sort_keys=False))
    tokenizer.save_pretrained(RUN)


if __name__ == "__main__":
    main()
