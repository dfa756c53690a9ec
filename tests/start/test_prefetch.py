"""Weights that are loaded before the engine's spec is known: the engine serves them, or they are dropped."""

import shutil
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.checkpoint.load import load_checkpoint
from service.errors import MalformedCheckpoint
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.start.prefetch import ExpectedWeights, PrefetchedWeights, check_prefetch, expect_weights, prefetch_weights
from service.start.progress import StartProgress
from service.start.tasks import load_weights
from service.storage.local import LocalSource
from service.weights.assembly import BANK_OFFSET_BYTES, BANKS_BYTES
from tests.served import DEMO

CPU = (jax.devices()[0],)
WEIGHTS_BYTES = (DEMO / "model.safetensors").stat().st_size


@pytest.fixture(autouse=True)
def without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.start.prefetch.expects_cpu", lambda: True)


def context_of(**settings) -> StartContext:
    metrics = Metrics()
    return StartContext(Settings(**{"model_stream": True} | settings), metrics, StartProgress(metrics))


def checkpoint_in(path: Path = DEMO) -> LocatedCheckpoint:
    return locate(str(path), LocalSource)


def spec_of(context: StartContext, checkpoint: LocatedCheckpoint) -> EngineSpec:
    return choose_engine_spec(context.settings, checkpoint, CPU)


def prefetch(
    context: StartContext, checkpoint: LocatedCheckpoint
) -> tuple[ExpectedWeights | None, PrefetchedWeights | None]:
    expected = expect_weights(context, checkpoint=checkpoint)
    return expected, prefetch_weights(context, checkpoint=checkpoint, expected_weights=expected)


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_the_prefetched_weights_are_those_that_the_engine_would_have_loaded(dtype: str, quantization: str):
    context, checkpoint = context_of(dtype=dtype, quantization=quantization), checkpoint_in()
    spec = spec_of(context, checkpoint)
    expected, prefetched = prefetch(context, checkpoint)
    assert expected is not None
    assert expected.match(spec)
    weights = load_weights(
        context, checkpoint=checkpoint, spec=spec, expected_weights=expected, prefetched_weights=prefetched
    ).weights
    assert context.progress.pulled.bytes_done == WEIGHTS_BYTES  # once
    usual = load_checkpoint(checkpoint, spec.specs, mesh=spec.mesh, limits=context_of().load_limits).weights
    assert list(weights) == list(usual)
    for name, weight in weights.items():
        np.testing.assert_array_equal(np.asarray(weight), np.asarray(usual[name]))


def test_weights_lie_where_they_are_read_fastest_and_are_placed_without_a_copy():
    context, checkpoint = context_of(), checkpoint_in()
    expected, prefetched = prefetch(context, checkpoint)
    assert prefetched is not None
    places = {name: weight.ctypes.data for name, weight in prefetched.loaded.weights.items()}
    assert {place % BANKS_BYTES for place in places.values()} == {BANK_OFFSET_BYTES}
    placed = load_weights(
        context,
        checkpoint=checkpoint,
        spec=spec_of(context, checkpoint),
        expected_weights=expected,
        prefetched_weights=prefetched,
    ).weights
    assert {name: weight.unsafe_buffer_pointer() for name, weight in placed.items()} == places


def test_an_engine_that_asks_for_other_weights_ends_the_prefetch_and_gets_its_own():
    context, checkpoint = context_of(), checkpoint_in()
    other = context_of(dtype="float16")
    spec = spec_of(other, checkpoint)
    expected, prefetched = prefetch(context, checkpoint)
    assert expected is not None
    check_prefetch(context, expected_weights=expected, spec=spec)
    assert prefetch_weights(context, checkpoint=checkpoint, expected_weights=expected) is None
    weights = load_weights(
        context, checkpoint=checkpoint, spec=spec, expected_weights=expected, prefetched_weights=prefetched
    ).weights
    assert {weight.dtype.name for weight in weights.values()} == {"float16"}


def test_an_engine_that_asks_for_the_same_weights_lets_the_prefetch_go_on():
    context, checkpoint = context_of(), checkpoint_in()
    expected = expect_weights(context, checkpoint=checkpoint)
    check_prefetch(context, expected_weights=expected, spec=spec_of(context, checkpoint))
    assert prefetch_weights(context, checkpoint=checkpoint, expected_weights=expected) is not None


def test_a_start_that_fails_ends_the_prefetch():
    context, checkpoint = context_of(), checkpoint_in()
    expected = expect_weights(context, checkpoint=checkpoint)
    context.failed.set()
    assert prefetch_weights(context, checkpoint=checkpoint, expected_weights=expected) is None


def test_a_file_that_is_cut_fails_the_prefetch(tmp_path: Path):
    broken = Path(shutil.copytree(DEMO, tmp_path / "broken"))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MalformedCheckpoint):
        prefetch(context_of(), checkpoint_in(broken))


def test_nothing_is_expected_where_the_engine_may_ask_for_something_else(monkeypatch: pytest.MonkeyPatch):
    checkpoint = checkpoint_in()

    def expected(**settings):
        return expect_weights(context_of(**settings), checkpoint=checkpoint)

    assert expected() is not None
    assert expected(tensor_parallel=2) is None
    with monkeypatch.context() as patch:
        patch.setattr("service.start.prefetch.host_memory_bytes", lambda: 1024)
        assert expected() is None
    with monkeypatch.context() as patch:
        patch.setattr("service.start.prefetch.expects_cpu", lambda: False)
        assert expected() is None
    checkpoint.hub_config["model_type"] = "mamba"  # the spec raises what is wrong with it
    assert expected() is None


def test_a_cancellation_follows_another_event():
    from service.start.prefetch import Cancellation

    other = threading.Event()
    cancellation = Cancellation(other)
    assert not cancellation.is_set()
    other.set()
    assert cancellation.is_set()
