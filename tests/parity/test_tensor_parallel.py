"""On two, four and eight devices comes what comes on one, from weights and a cache that really are split."""

import numpy as np
import pytest

from tests.process import run_on_devices
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

pytestmark = pytest.mark.slow

# The first number of devices for each model: two divide the KV heads of one, four need copies of the other's.
FIRST = {"rows": 2, "pages": 4, "adapters": 2}
ROW_TOKENS = 4
CASES = [(model, count) for model in ("rows", "pages") for count in (2, 4, 8)]
# Which axes are split, said again: whoever changes the table of the service has to mean it.
SPLIT_AXES = {"kv_head", "heads", "mlp", "vocab"}


class Served:
    """The results of processes with eight devices, by model and number of devices; each process runs when needed."""

    def __init__(self):
        self._results = {model: {} for model in FIRST}

    def result(self, model: str, count: int) -> dict:
        if not self._results[model]:  # one device, to compare with, and the first case
            self._run(model, (1, FIRST[model]))
        if count not in self._results[model]:
            self._run(model, tuple(other for other in (2, 4, 8) if other != FIRST[model]))
        return self._results[model][count]

    def _run(self, model: str, counts: tuple[int, ...]) -> None:
        found = run_on_devices("tests.parity.tensor_parallel_process", model, *map(str, counts), num_devices=8)
        self._results[model] |= {int(count): result for count, result in found.items()}


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


@pytest.mark.parametrize(("model", "count"), CASES)
def test_the_tokens_are_those_of_one_device(served, model, count):
    alone, shared = served.result(model, 1)["generated"], served.result(model, count)["generated"]
    for one, many in zip(alone, shared, strict=True):
        assert (one["id"], one["token_ids"]) == (many["id"], many["token_ids"])
        assert len(one["token_ids"]) == 12
    # A prefix of an earlier request was found, and so its pages were copied where the kernel keeps rows.
    assert [result["num_cached_tokens"] for result in shared] == [0, 0, 0, 16]


def test_adapters_answer_on_two_devices_as_on_one(served):
    alone, shared = (
        {result["id"]: result for result in served.result("adapters", count)["generated"]} for count in (1, 2)
    )
    assert {name: result["token_ids"] for name, result in alone.items()} == {
        name: result["token_ids"] for name, result in shared.items()
    }
    assert len({tuple(alone[name]["token_ids"]) for name in ("drawn", "first", "second")}) == 3
    for name in ("first", "second"):
        one, many = (np.array(results[name]["logprobs"]) for results in (alone, shared))
        np.testing.assert_allclose(many, one, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)
    assert served.result("adapters", 2)["traces_and_compiles"] == [0, 0]


@pytest.mark.parametrize(("model", "count"), CASES)
def test_the_scores_are_those_of_one_device_but_for_the_order_of_sums(served, model, count):
    alone, shared = (
        {result["id"]: np.array(result["logprobs"]) for result in served.result(model, number)["generated"]}
        for number in (1, count)
    )
    assert alone["drawn"].shape == (17 + 12, 21)
    np.testing.assert_allclose(shared["drawn"], alone["drawn"], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


@pytest.mark.parametrize(("model", "count"), CASES)
def test_executables_for_several_devices_come_out_of_a_bundle_and_nothing_is_compiled_besides(served, model, count):
    assert served.result(model, count)["traces_and_compiles"] == [0, 0]


@pytest.mark.parametrize(("model", "count"), CASES)
def test_a_decode_step_exchanges_hidden_states_and_scores_and_never_weights_or_cache(served, model, count):
    hidden_size, vocab_size, num_layers = 32, 96, 2
    for name, found in served.result(model, count)["collectives"].items():
        num_seqs, num_rows = (int(name.partition(word)[2].partition("-")[0] or 0) for word in ("seqs", "rows"))
        num_tokens = num_seqs + num_rows * ROW_TOKENS
        if name.startswith(
            ("layers", "whole", "hidden")
        ):  # a sum behind attention and one behind the MLP of each layer
            assert found == [["all-reduce", [num_tokens, hidden_size]]] * (2 * num_layers)
        elif name.startswith("embed") and model == "rows":  # whose vocabulary is split
            assert found == [["all-reduce", [num_tokens, hidden_size]]]
        elif name.startswith(("sample", "prompt-logprobs")):
            assert [kind for kind, _ in found] == (["all-gather"] if model == "rows" else [])
            assert [shape[1] for _, shape in found] == ([vocab_size] if model == "rows" else [])
        else:
            assert found == []


@pytest.mark.parametrize(("model", "count"), CASES)
def test_every_step_and_copy_writes_the_cache_of_its_device_in_place(served, model, count):
    result = served.result(model, count)
    for name, reused_bytes in result["reused_bytes"].items():
        if name.startswith(("layers", "whole", "hidden")):
            assert reused_bytes >= result["cache_bytes"]


@pytest.mark.parametrize(("model", "count"), CASES)
def test_every_weight_lies_in_equal_parts_along_its_axes(served, model, count):
    weights = served.result(model, count)["weights"]
    for axes, shape, parts in weights.values():
        expected = [
            size // count if name in SPLIT_AXES and size % count == 0 else size
            for name, size in zip(axes, shape, strict=True)
        ]
        assert parts == [expected] * count
    split = {name for name, (_, shape, parts) in weights.items() if parts[0] != shape}
    layers = {f"layers.{layer}.{name}" for layer in (0, 1) for name in ("qkv", "output", "gate_up", "down")}
    biases = {f"layers.{layer}.{name}" for layer in (0, 1) for name in ("qkv_bias", "gate_up_bias")}
    # 97 tokens divide by nothing.
    assert split == layers | ({"embed", "unembed"} if model == "rows" else biases)


@pytest.mark.parametrize(("model", "count"), CASES)
def test_the_cache_is_split_by_heads_and_stays_so_over_steps(served, model, count):
    result = served.result(model, count)
    num_heads = {"rows": 4, "pages": 2}[model]
    assert result["kv_heads"] == max(num_heads, count)
    assert result["kv_copies"] == max(1, count // num_heads)
    for shape, parts in result["cache"]:
        assert shape[1] == result["kv_heads"]
        assert parts == [[shape[0], shape[1] // count, *shape[2:]]] * count
