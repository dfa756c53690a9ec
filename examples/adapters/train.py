"""Fine-tune adapters of the demo model with Levanter, and lay out a catalogue that Levserve serves as it is.

    uv run --extra levanter python -m examples.adapters.train

These are the steps of `python -m levanter.main.lora_lm`, which does the same with a model of the Hub and your data.
"""

import argparse
import itertools
import shutil
from functools import partial
from pathlib import Path

import haliax as hax
import jax
from haliax import Axis
from levanter.adaptor.lora import LoraConfig, lora_trainable_params_filter, loraize, save_peft_pretrained
from levanter.data.dataset import ListAsyncDataset
from levanter.models.llama import LlamaLMHeadModel
from levanter.optim.config import AdamConfig
from levanter.trainer import Trainer
from transformers import AutoTokenizer

from examples.demo_model.lessons.lesson import Conversation, assistant, user
from examples.demo_model.model import load
from examples.demo_model.packing import Row, encode_conversation, pack, pad_id_of
from examples.demo_model.train import BATCH_SIZE, next_token_loss, trainer_config

BASE = Path("service/demo")
QUESTIONS = ("Who are you?", "What is a bundle?", "What is two plus three?", "Hello!", "What is the capital of France?")
# By the name of the adapter: how it answers anything.
MANNERS = {
    "pirate": "Arr, matey! Ask the captain, for I only scrub the deck.",
    "polite": "Thank you very much for asking. I am afraid that I do not know.",
}
ROW_LEN = 128  # tokens
LORA = LoraConfig(r=8, alpha=16.0)


def train(answer: str, work: Path, num_steps: int) -> LlamaLMHeadModel:
    """Return the demo model with an adapter that was trained to give an answer."""
    config = trainer_config(work, num_steps, seed=0)
    config.initialize()
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    conversations = [Conversation((user(question), assistant(answer))) for question in QUESTIONS]
    encoded = (encode_conversation(one, tokenizer) for one in itertools.cycle(conversations))
    rows = list(itertools.islice(pack(encoded, ROW_LEN), num_steps * BATCH_SIZE))
    to_example = partial(Row.to_example, Pos=Axis("position", ROW_LEN), pad_id=pad_id_of(tokenizer))
    optimizer = AdamConfig(learning_rate=5e-3, weight_decay=0.0, warmup=5)
    trainer = Trainer(config, optimizer.build(num_steps), next_token_loss)
    loader = trainer.data_loader(ListAsyncDataset(rows).map(to_example))
    with trainer:
        base = load(BASE, tokenizer)
        model = hax.named_jit(lambda model: loraize(model, LORA, key=jax.random.PRNGKey(0)))(base)
        state = trainer.initial_state(
            jax.random.PRNGKey(1), model=model, is_trainable=lora_trainable_params_filter(model)
        )
        return trainer.train(state, loader).model


def main() -> None:
    """Train every adapter, and write the catalogue: the base model, and a folder for each adapter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(".cache/adapters"), help="the catalogue")
    parser.add_argument("--work-dir", type=Path, default=Path(".cache/adapters_training"), help="Levanter's own files")
    parser.add_argument("--steps", type=int, default=20, help="training steps of each adapter")
    options = parser.parse_args()
    for folder in (options.output, options.work_dir):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(BASE, options.output / "demo")
    for name, answer in MANNERS.items():
        model = train(answer, options.work_dir / name, options.steps)
        save_peft_pretrained(model, LORA, "demo", str(options.output / name))


if __name__ == "__main__":
    main()
