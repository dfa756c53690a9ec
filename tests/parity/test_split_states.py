"""Models whose layers keep states give on two and four devices what they give on one, from states that are split."""

import functools

import numpy as np
import pytest

from service.device.mesh import choose_mesh
from service.errors import SettingsError
from service.models.registry import read_config
from tests.device.devices import host
from tests.parity.family_cases import FAMILY_CASES
from tests.process import run_on_devices

MODELS = ("matrices", "convolutions", "branches", "groups")
# Parts of the states that every device has whole: what branches add, of each of two layers.
NUM_WHOLE = {"branches": 4}
LATENT = {"branches": (28,)}  # the width that experts give, which is summed over the devices, too
COUNTS = ("1", "2", "4")
MOST_DIFFERENT_LOGPROB = 1e-5
TIMEOUT_S = 800  # of a process that compiles all programs for three numbers of devices


@functools.cache
def served(model: str) -> dict[str, dict]:
    """Return the results by the number of devices."""
    return run_on_devices("tests.parity.tensor_parallel_process", model, *COUNTS, num_devices=8, timeout_s=TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("model", MODELS)
def test_tokens_and_scores_are_those_of_one_device(model):
    alone, *others = (served(model)[count]["generated"] for count in COUNTS)
    assert len({tuple(result["token_ids"]) for result in alone}) == len(alone)
    for shared in others:
        for one, many in zip(alone, shared, strict=True):
            assert (one["id"], one["token_ids"]) == (many["id"], many["token_ids"])
            for logprobs, expected in zip(many["logprobs"], one["logprobs"], strict=True):
                np.testing.assert_allclose(logprobs, expected, atol=MOST_DIFFERENT_LOGPROB, rtol=0)
        # The state after a prefix of an earlier request was found.
        assert [result["num_cached_tokens"] for result in shared][:4] == [0, 0, 0, 16]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("model", MODELS)
def test_each_device_has_its_part_of_states_and_steps_exchange_hidden_states_alone(model):
    whole, *others = (served(model)[count] for count in COUNTS)
    for count, result in zip((2, 4), others, strict=True):
        assert result["traces_and_compiles"] == [0, 0]
        num_whole = 0
        for shape, parts in result["cache"]:
            split = [shape[axis] // parts[0][axis] for axis, size in enumerate(shape) if parts[0][axis] != size]
            assert split in ([], [count])
            num_whole += not split
        assert num_whole == NUM_WHOLE.get(model, 0)
        assert len(result["cache"]) == len(whole["cache"])
        for name, found in result["collectives"].items():
            if name.startswith("layers"):
                assert {kind for kind, _ in found} == {"all-reduce"}
                assert {32} <= {shape[1] for _, shape in found} <= {32, *LATENT.get(model, ())}
                # The state is written where it lay.
                assert result["reused_bytes"][name] >= result["cache_bytes"] // 2


@pytest.mark.parametrize(
    ("name", "fits", "does_not", "stated"),
    [
        ("qwen3_5", 2, 4, "linear_num_key_heads = 2"),
        ("qwen3_next", 2, 4, "linear_num_key_heads = 2"),
        ("lfm2", 4, 3, "hidden_size = 32"),
        ("nemotron_h", 2, 4, "mamba_n_groups = 2"),
        ("falcon_h1", 2, 4, "mamba_n_groups = 2"),
    ],
)
def test_a_number_of_devices_that_divides_no_head_or_channel_is_refused_by_name(name, fits, does_not, stated):
    case = next(case for case in FAMILY_CASES if case.name == name)
    sizes = read_config("test", case.hub_config).split_sizes
    assert choose_mesh(host(8), tensor_parallel=fits, sizes=sizes).num_devices == fits
    with pytest.raises(SettingsError, match=rf"TENSOR_PARALLEL: is {does_not}\..*{stated}"):
        choose_mesh(host(8), tensor_parallel=does_not, sizes=sizes)
