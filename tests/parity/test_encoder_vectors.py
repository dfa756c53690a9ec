"""Vectors of encoder families equal those of transformers, alone and in any batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.models.encoders.registry import any_encoder_weight_specs, is_encoder, read_encoder_config
from service.models.encoders.token_scores import SCORE_TOKEN_IDS
from service.models.weight_spec import FLOAT32
from tests.encoder import tiny
from tests.encoder.running import tiny_of
from tests.parity.encoder_cases import ENCODER_CASES, EncoderCase, second_from, tensor, texts
from tests.tolerances import SAME_MODEL_ATOL

HEADS = ("score.", "lm_head.", "head.", "classifier.")  # names that no model's prefix precedes


def write_checkpoint(folder: Path, case: EncoderCase, *, prefix: str = "") -> None:
    """Write a checkpoint whose tensors have a prefix, as those of a model with a head."""
    files: dict[str, Any] = {"config.json": case.hub_config}
    if case.pooling is not None:
        files["modules.json"] = tiny.MODULES[:2]
        (folder / "1_Pooling").mkdir()
        files["1_Pooling/config.json"] = {f"pooling_mode_{case.pooling}": True}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    tiny.tokenizer().save(str(folder / "tokenizer.json"))
    ids = [tiny.VOCAB[token] for token in case.config.get("classifier_from_token", ())]
    config = read_encoder_config("test", case.hub_config | {SCORE_TOKEN_IDS: ids}, files)
    assert is_encoder(case.hub_config, files)
    sources = [source for spec in any_encoder_weight_specs(config, FLOAT32) for source in spec.sources]
    made = {source.name: tensor(source.name, source.shape) for source in sources}
    kept = {name if name.startswith(HEADS) else f"{prefix}{name}": array for name, array in made.items()}
    save_file(kept, folder / "model.safetensors")


LEAST_COSINE = 0.99999
# Elements below 1, alone and in a batch: the same sums in another order. Each is up to 1.2e-6 from transformers' own,
# and how XLA tiles them depends on the processor: Gemma 3's differ by 1.5e-6 with AVX2.
SAME_VECTOR_ATOL = 2 * 1.2e-6


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# The others differ from one of these in what decoders' own tests compare.
WITH_PREFIX = ("qwen3", "modernbert")
QUICK = ("gemma3", "modernbert", "qwen3_reranker")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else pytest.mark.slow) for case in ENCODER_CASES],
)
def test_vectors_equal_those_of_transformers_in_every_batch(case, tmp_path):
    is_score, given, seconds = case.pooling is None, texts(case.padding_id), second_from(case)
    write_checkpoint(tmp_path, case, prefix="model." if is_score and case.model_type in WITH_PREFIX else "")
    model, expected = tiny_of(tmp_path, max_prefill_tokens=64), np.load(case.reference_path)["vectors"]
    found = model.vectors(*given, second_from=seconds)
    np.testing.assert_allclose(found, expected, atol=SAME_MODEL_ATOL, rtol=0)
    assert model.spec.config.vector.is_score == is_score
    alone = np.concatenate(
        [model.vectors(text, second_from=[second]) for text, second in zip(given, seconds, strict=True)]
    )
    if not is_score:
        assert (unit(found) * unit(expected)).sum(-1).min() >= LEAST_COSINE
        found, alone = unit(found), unit(alone)
    np.testing.assert_allclose(found, alone, atol=SAME_VECTOR_ATOL, rtol=0)


@pytest.mark.slow
def test_a_checkpoint_of_a_model_with_a_head_names_its_tensors_after_the_model(tmp_path):
    case = ENCODER_CASES[0]
    write_checkpoint(tmp_path, case, prefix="model.")
    expected = np.load(case.reference_path)["vectors"]
    np.testing.assert_allclose(
        tiny_of(tmp_path, max_prefill_tokens=16).vectors(*texts()), expected, atol=SAME_MODEL_ATOL
    )
