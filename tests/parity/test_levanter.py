"""Levanter's own forward and Levanter's own checkpoints give what ours give."""

import numpy as np
import pytest

from service.checkpoint.levanter import levanter_config, read_tensors, run_values
from tests.levanter_run import build_model, implicit_promotion, levanter_logits, save_step
from tests.parity.cases import CASES
from tests.parity.family_cases import FAMILY_CASES
from tests.tolerances import SAME_MODEL_ATOL

# What Levanter does not have: it ignores Mistral's window, refuses or ignores Qwen's, and gives norms a bias too where
# attention has one. Our values for these stand against transformers alone.
BEYOND_LEVANTER = {"mistral_window", "qwen2_window", "qwen3_window", "llama_biases"}
QUICK = {"llama_llama3", "mistral_no_window", "qwen2_tied", "qwen3"}  # one of each family
IN_LEVANTER = [
    pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow)
    for case in CASES
    if case.name not in BEYOND_LEVANTER
]

# Importing Levanter takes ten seconds of a processor, so one worker runs all that does.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("levanter")]


@pytest.mark.parametrize("case", IN_LEVANTER)
def test_levanters_forward_gives_the_reference_logits_that_ours_gives(case):
    model = build_model(case.hub_config, case.tensors())
    with implicit_promotion():
        logits = levanter_logits(model, case.token_ids)
    np.testing.assert_allclose(logits, np.load(case.reference_path)["logits"], atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("name", ["llama_tied", "llama_wide_heads", "mistral_window", "qwen2", "qwen3", "snowball"])
def test_a_levanter_step_is_read_back_bit_by_bit(tmp_path, name):
    case = next(case for case in (*CASES, *FAMILY_CASES) if case.name == name)
    path = save_step(tmp_path, 7, case.hub_config, case.tensors())
    read = read_tensors("test", path, run_values(levanter_config(case.hub_config), 96))
    expected = case.tensors()
    assert read.keys() == expected.keys()
    for tensor in expected:
        np.testing.assert_array_equal(read[tensor], expected[tensor])


def test_rows_that_levanter_added_to_divide_the_vocabulary_are_cut(tmp_path):
    case = next(case for case in CASES if case.name == "llama_grouped_heads")
    padded = {
        name: np.pad(t, ((0, 32), (0, 0))) if len(t) == 96 and t.ndim == 2 and t.shape == (96, 32) else t
        for name, t in case.tensors().items()
    }
    path = save_step(tmp_path, 1, {**case.hub_config, "vocab_size": 128}, padded)
    read = read_tensors("test", path, run_values(levanter_config(case.hub_config), 96))
    np.testing.assert_array_equal(read["lm_head.weight"], case.tensors()["lm_head.weight"])
