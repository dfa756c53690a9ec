"""Runs of models that no release of Levanter has: our logits, from the steps that it saves, are those of its source."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from service.checkpoint.discover import locate
from service.checkpoint.levanter import one_device_mesh
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import MalformedCheckpoint, UnsupportedModel
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.levanter_run import implicit_promotion
from tests.parity.cases import NUM_TOKENS, VOCAB_SIZE
from tests.parity.family_cases import FAMILY_CASES
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL

HERO = {
    **{"type": "hero", "hidden_dim": 32, "num_layers": 5, "num_heads": 8, "num_kv_heads": 4, "local_kv_heads": 4},
    **{"global_kv_heads": 2, "head_dim": 16, "max_seq_len": 64, "sliding_window": 8, "global_every": 3},
    **{"intermediate_dim": 24, "shared_expert_intermediate_dim": 20, "num_experts": 6, "num_experts_per_token": 2},
    **{"latent_dim": 28, "layer_norm_eps": 1e-3},
}
QWEN = {
    **{"type": "qwen35", "hidden_dim": 32, "intermediate_dim": 48, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2},
    **{"head_dim": 16, "max_seq_len": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 6},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 12, "full_attention_interval": 3},
}
RUNS: dict[str, dict[str, Any]] = {
    "hero": HERO,
    "hero_plain": {
        **{**HERO, "rope_fused": False, "latent_dim": None, "local_kv_heads": None, "global_kv_heads": None},
        **{"sconv_sites": ["attn"], "num_shared_experts": 1, "rope": {"theta": 500.0}},
    },
    "hero_fewer_local_heads": {
        **{**HERO, "local_kv_heads": 1, "global_kv_heads": 4, "sconv_sites": ["k"], "sconv_kernel": 3},
        "shared_expert_intermediate_dim": 0,
    },
    "hero_without_convolutions": {**HERO, "sconv": False},
    "qwen35": {**QWEN, "rope": {"type": "partial", "theta": 500.0, "partial_rotary_factor": 0.5}},
    "qwen35_untied": {
        **{**QWEN, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3, "linear_num_value_heads": 2},
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
    },
}
NUM_PADDING = 32
VOCABULARY = {  # the axis of the vocabulary
    **{"embeddings/token_embeddings/weight": 0, "lm_head/weight": 0},
    **{"transformer/token_embed": 0, "transformer/output_proj": 1},
}
MODEL_TYPES = {"hero": "grug_moe", "qwen35": "qwen3_5"}

# Importing Levanter takes ten seconds of a processor: one worker runs all that does, and no run that leaves them out.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("levanter")]


def save_run(folder: Path, run: dict[str, Any]) -> dict[str, np.ndarray]:
    """Save a step of a run through Levanter's own writer, with its YAML; return its arrays by their paths.

    The vocabulary has rows that no token has, as where it was made divisible among devices.
    """
    from levanter.checkpoint import save_checkpoint

    from tests.parity.levanter_newer import drawn_run

    tree, _ = drawn_run(run, VOCAB_SIZE, MODEL_TYPES[run["type"]])
    nested: dict[str, Any] = {}
    for path, array in tree.items():
        *parts, name = path.split("/")
        branch = nested
        for part in parts:
            branch = branch.setdefault(part, {})
        num_added = [(0, NUM_PADDING if axis == VOCABULARY.get(path) else 0) for axis in range(array.ndim)]
        branch[name] = np.pad(array, num_added)
    with jax.set_mesh(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))):
        arrays = jax.tree.map(jax.numpy.asarray, nested)
        save_checkpoint({"model": arrays}, 3, str(folder / "step-3"), is_temporary=False)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": run, "trainer": {"seed": 1}}))
    return tree


def logits_of(folder: Path, token_ids: np.ndarray, chunk: int) -> np.ndarray:
    """Return the logits of a text, from a folder as a start reads it."""
    located = locate(str(folder), LocalSource, tokenizer_uri=str(DEMO))
    located = replace(located, hub_config={**located.hub_config, "vocab_size": VOCAB_SIZE})
    model = Decoder(read_config(str(folder), located.hub_config))
    loaded = load_on_host(located, model.weight_specs(), LoadLimits(None, Progress(), 1 << 20))
    weights = {name: jax.numpy.asarray(weight) for name, weight in loaded.weights.items()}
    return logits_by_chunk(model, weights, token_ids, chunk)


@pytest.mark.parametrize("name", RUNS)
def test_a_step_says_what_levanters_source_says(name, tmp_path):
    from tests.parity.levanter_newer import NeedsExplicitAxes, hero_logits, qwen35_logits

    run = RUNS[name]
    tree = save_run(tmp_path, run)
    token_ids = np.random.RandomState(7).randint(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)
    theirs = hero_logits if run["type"] == "hero" else qwen35_logits
    with implicit_promotion(), jax.set_mesh(one_device_mesh(NeedsExplicitAxes())):
        expected = theirs(run, tree, token_ids)
    for chunk in (NUM_TOKENS, 7):
        np.testing.assert_allclose(logits_of(tmp_path, token_ids, chunk), expected, atol=SAME_MODEL_ATOL, rtol=0)


def test_a_step_beside_its_export_is_the_run(tmp_path):
    case = next(case for case in FAMILY_CASES if case.name == "hero")
    run = {**HERO, "layer_norm_eps": 1e-5, "qk_mult": 1.5}
    save_run(tmp_path, run)
    from_yaml = read_config("test", locate(str(tmp_path), LocalSource, tokenizer_uri=str(DEMO)).hub_config)
    (tmp_path / "config.yaml").unlink()
    (tmp_path / "config.json").write_text(json.dumps(case.hub_config))
    from_export = locate(str(tmp_path), LocalSource, tokenizer_uri=str(DEMO))
    of_export = read_config("test", from_export.hub_config)
    assert of_export == replace(from_yaml, vocab_size=VOCAB_SIZE)
    expected = np.load(case.reference_path)["logits"]
    np.testing.assert_allclose(logits_of(tmp_path, case.token_ids, NUM_TOKENS), expected, atol=SAME_MODEL_ATOL, rtol=0)


def test_a_key_that_levanter_has_not_and_a_step_of_another_size_are_refused_by_name(tmp_path):
    save_run(tmp_path, RUNS["qwen35"])
    for model, refusal, words in (
        ({**QWEN, "linear_num_heads": 2}, MalformedCheckpoint, "'qwen35' has no 'linear_num_heads'"),
        ({**QWEN, "linear_conv_kernel_dim": 1}, UnsupportedModel, "a convolution of one tap keeps no state"),
        ({**QWEN, "head_dim": 24}, MalformedCheckpoint, r"self_attn.q_proj.weight"),
        ({**QWEN, "rope": {"type": "default", "theta": 1e4, "partial_rotary_factor": 0.2}}, UnsupportedModel, "pairs"),
    ):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(model))
        with pytest.raises(refusal, match=words):
            logits_of(tmp_path, np.zeros(2, np.int32), 2)
