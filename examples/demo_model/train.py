"""Train the demo model with Levanter and export it for serving.

    uv run --extra levanter python -m examples.demo_model.train

It writes a Hugging Face checkpoint (`--output`), a Levanter run directory (`--run-dir`) and a plot of the loss.
Either of the two directories can be served with `MODEL_URI=<directory> make serve`.
"""

import argparse
import json
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jmp
import matplotlib as mpl
import numpy as np
import optax
from haliax import Axis
from levanter.callbacks import StepInfo
from levanter.checkpoint import CheckpointerConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.models.llama import LlamaLMHeadModel
from levanter.optim.muon import MuonConfig
from levanter.tracker.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from examples.demo_model.model import MAX_SEQ_LEN, export, load, model_config, vocab_axis
from examples.demo_model.packing import Example, Row, pad_id_of, sample_rows
from examples.demo_model.tokenizer import train_tokenizer

mpl.use("Agg")

BATCH_SIZE = 16  # rows
ROW_LEN = 512  # tokens
MATRIX_RATE, OTHER_RATE = 0.02, 2e-3  # learning rates of Muon and of AdamW
FURTHER_SHARE = 0.25  # of the rates, for a model that was trained before
WARMUP_STEPS = 50


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("service/demo"), help="the Hugging Face checkpoint")
    parser.add_argument("--run-dir", type=Path, default=Path(".cache/demo_model"), help="Levanter's run directory")
    parser.add_argument("--plot", type=Path, default=Path("docs/demo_model_loss.png"), help="the plot of the loss")
    parser.add_argument("--steps", type=int, default=2200, help="training steps")
    parser.add_argument("--initial", type=Path, help="the export of an earlier run, to train further at a lower rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights, the corpus and its order")
    return parser.parse_args()


def trainer_config(run_dir: Path, num_steps: int, seed: int) -> TrainerConfig:
    """Return Levanter's trainer configuration: any device, no tracker, one checkpoint at the end."""
    return TrainerConfig(
        id="demo_model",
        seed=seed,
        train_batch_size=BATCH_SIZE,
        num_train_steps=num_steps,
        tracker=NoopConfig(),
        require_accelerator=False,
        mp=jmp.get_policy("params=float32,compute=bfloat16,output=float32"),
        load_checkpoint=False,
        log_dir=run_dir / "logs",
        log_jaxprs=False,
        log_xla_hlo=False,
        checkpointer=CheckpointerConfig(
            base_path=str(run_dir), append_run_id_to_base_path=False, save_interval=None, keep=None
        ),
    )


def next_token_loss(model: LlamaLMHeadModel, example: Example, *, key: jax.Array | None = None) -> jax.Array:
    """Return the mean cross-entropy in nats over the tokens in the loss mask."""
    tokens, weights = example.lm.tokens, example.lm.loss_weight.array
    logits = model(tokens, example.lm.attn_mask, pos_ids=example.positions, key=key)
    targets = jnp.roll(tokens.array, -1, axis=-1)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.array.astype(jnp.float32), targets)
    return jnp.sum(losses * weights) / jnp.maximum(jnp.sum(weights), 1)


def train(
    config: TrainerConfig, tokenizer: PreTrainedTokenizerFast, initial: Path | None
) -> tuple[LlamaLMHeadModel, dict[int, float]]:
    """Train from random weights, or from an export; return the model and the loss of each step."""
    config.initialize()
    share = 1.0 if initial is None else FURTHER_SHARE
    # Muon learns faster than AdamW; embeddings and norms stay with the latter.
    optimizer = MuonConfig(
        learning_rate=MATRIX_RATE * share,
        adam_lr=OTHER_RATE * share,
        weight_decay=0.01,
        warmup=WARMUP_STEPS,
        min_lr_ratio=0.0,
    )
    trainer = Trainer(config, optimizer.build(config.num_train_steps), next_token_loss)
    losses: dict[int, float] = {}
    trainer.add_hook(lambda info: losses.update({info.step: info.loss}))

    rows = sample_rows(config.num_train_steps * BATCH_SIZE, ROW_LEN, tokenizer, config.seed)
    to_example = partial(Row.to_example, Pos=Axis("position", ROW_LEN), pad_id=pad_id_of(tokenizer))
    loader = trainer.data_loader(ListAsyncDataset(rows).map(to_example))

    weights_key, training_key = jax.random.split(jax.random.PRNGKey(config.seed))
    with trainer:
        if initial is None:
            Vocab = vocab_axis(tokenizer)
            state = trainer.initial_state(training_key, model_init=lambda: model_config().build(Vocab, key=weights_key))
        else:
            state = trainer.initial_state(training_key, model=load(initial, tokenizer))
        info: StepInfo = trainer.train(state, loader)
    return info.model, losses


def forget_checkpoints(run_dir: Path) -> None:
    """Remove the checkpoints of earlier runs, so that the newest checkpoint is of this run."""
    for path in run_dir.glob("step-*"):
        shutil.rmtree(path)


def indent_json(checkpoint: Path) -> None:
    """Indent the small JSON files of a checkpoint for readers and diffs."""
    for path in checkpoint.glob("*config.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def complete_run_directory(run_dir: Path, checkpoint: Path) -> None:
    """Copy the configuration and the tokenizer next to the `step-N` of a run, which makes it servable."""
    for pattern in ("*.json", "*.jinja"):
        for path in checkpoint.glob(pattern):
            shutil.copy(path, run_dir)


def plot_loss(losses: dict[int, float], path: Path) -> None:
    """Plot the loss of each step and its running mean."""
    from matplotlib import pyplot as plt

    steps, values = np.array(list(losses)), np.array(list(losses.values()))
    window = min(20, len(values))
    mean = np.convolve(values, np.ones(window) / window, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4), constrained_layout=True)
    axes.plot(steps, values, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps[window - 1 :], mean, color="tab:blue", linewidth=2, label=f"mean of {window} steps")
    axes.set(xlabel="training step", ylabel="cross-entropy of the answers (nats per token)", yscale="log")
    axes.set_title("Training of the demo model")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, export and plot."""
    arguments = parse_arguments()
    forget_checkpoints(arguments.run_dir)
    if arguments.initial is None:
        tokenizer = train_tokenizer(arguments.seed, MAX_SEQ_LEN)
    else:
        tokenizer = AutoTokenizer.from_pretrained(arguments.initial)
    config = trainer_config(arguments.run_dir, arguments.steps, arguments.seed)
    model, losses = train(config, tokenizer, arguments.initial)
    with config.use_device_mesh():
        export(model, tokenizer, arguments.output)
    indent_json(arguments.output)
    complete_run_directory(arguments.run_dir, arguments.output)
    plot_loss(losses, arguments.plot)
    print(f"Final loss {np.mean(list(losses.values())[-20:]):.4f}")
    print(f"Hugging Face checkpoint: {arguments.output}")
    print(f"Levanter run directory:  {arguments.run_dir}")


if __name__ == "__main__":
    main()
