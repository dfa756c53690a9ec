"""An adapter that Levanter exported has the logits of the model that Levanter merged."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.random import PRNGKey

from service.checkpoint.adapters.locate import locate_adapter
from service.checkpoint.adapters.read import read_updates
from service.checkpoint.limits import LoadLimits
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.observability.progress import Progress
from tests.levanter_run import build_model, implicit_promotion
from tests.parity.adapter_cases import BASES
from tests.parity.cases import VOCAB_SIZE
from tests.parity.family_cases import FamilyCase, draw
from tests.parity.test_adapter_slots import (
    SLOTS,
    Pair,
    base_weights,
    laid_out,
    open_local,
    with_adapter,
)
from tests.parity.test_adapters import merged_logits, save_base
from tests.parity.test_reference_logits import bare_tensors
from tests.tolerances import SAME_MODEL_ATOL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("levanter")]

MLP = 128  # of Levanter's GPT-2: four times the width of the embedding


class LevanterGpt2(FamilyCase):
    """The tiny GPT-2 as Levanter builds it."""

    @property
    def hub_config(self) -> dict[str, Any]:
        sizes = {"model_type": "gpt2", "vocab_size": VOCAB_SIZE, **BASES["gpt2"].config, "n_inner": MLP}
        return sizes | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)

    def tensors(self) -> dict[str, np.ndarray]:
        shapes = {name: tensor.shape for name, tensor in super().tensors().items()}
        wide = {name: tuple(MLP if size == 48 else size for size in shape) for name, shape in shapes.items()}
        return {name: draw("gpt2", name, shape) for name, shape in wide.items()}


ADAPTERS = {
    "every layer": (BASES["llama_grouped_heads"], None),
    "a list": (BASES["qwen3"], ["q_proj", "down_proj"]),
    "a regular expression": (BASES["llama_grouped_heads"], r".*(k_proj|v_proj|o_proj|up_proj).*"),
    "fused": (LevanterGpt2("gpt2", "gpt2"), None),
}


def trained(model, config):
    """Return the model with an adapter whose matrices are all random."""
    import equinox
    from levanter.adaptor.lora import is_lora_param, loraize

    adapted = loraize(model, config, key=PRNGKey(0))
    keys = iter(jax.random.split(PRNGKey(1), 100))

    def draw(node):
        if not is_lora_param(node):
            return node
        return jax.tree.map(
            lambda x: 0.2 * jax.random.normal(next(keys), x.shape, x.dtype) if equinox.is_array(x) else x, node
        )

    return jax.tree.map(draw, adapted, is_leaf=is_lora_param)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_export_equals_levanters_own_merge_merged_and_in_a_slot(name: str, tmp_path: Path):
    import equinox
    import haliax as hax
    from levanter.adaptor.lora import LoraConfig, merge_lora_modules, save_peft_pretrained
    from levanter.layers.attention import AttentionMask

    base, targets = ADAPTERS[name]
    with implicit_promotion():
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in base.tensors().items()}
        model = build_model(base.hub_config, tensors)
        config = LoraConfig(target_modules=targets, r=4, alpha=7.0)
        adapted = trained(model, config)
        save_peft_pretrained(adapted, config, "org/base", str(tmp_path / "adapter"))
        merged = merge_lora_modules(adapted)
        token_ids = hax.named(jax.numpy.asarray(base.token_ids), "position")
        forward = equinox.filter_jit(lambda model, ids: model(ids, AttentionMask.causal()))
        expected = forward(merged, token_ids).rearrange(("position", "vocab")).array
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["lora_alpha"] == 7
    base_folder = save_base(base, tmp_path / "base")
    logits = merged_logits(base_folder, tmp_path / "adapter", base.token_ids)
    plain = merged_logits(base_folder, None, base.token_ids)
    assert np.abs(logits - plain).max() > 100 * SAME_MODEL_ATOL
    np.testing.assert_allclose(logits, expected, atol=SAME_MODEL_ATOL, rtol=0)

    config, token_ids = read_config("m", base.hub_config), base.token_ids[:24]
    slots = Decoder(config, adapters=SLOTS)
    located = locate_adapter(str(tmp_path / "adapter"), open_local)
    updates = read_updates(located, decoder_weight_specs(config), LoadLimits(None, Progress(), 1 << 20))
    weights = base_weights(slots, bare_tensors(base.model_type, base.tensors()))
    weights = with_adapter(weights, slots, laid_out("a", updates, slots))
    in_slot, _ = Pair(slots, token_ids).logits(weights)
    np.testing.assert_allclose(in_slot, expected[: len(token_ids)], atol=SAME_MODEL_ATOL, rtol=0)
