"""Weights that are loaded before the plan is known: they are its weights, or they are dropped."""

import shutil
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import jax
import numpy as np
import pytest

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.checkpoint.load import LoadLimits, load_checkpoint
from service.errors import MalformedCheckpoint, SettingsError
from service.settings import Settings
from service.start.prefetch import expected_weights, load_ahead
from service.start.spec import EnginePlan, plan_engine
from service.storage.local import LocalSource
from service.storage.progress import Progress
from service.weights.assembly import BANK_OFFSET_BYTES, BANKS_BYTES
from tests.served import DEMO

CPU = (jax.devices()[0],)
STAGING_BYTES = 64 * 1024 * 1024


@pytest.fixture(autouse=True)
def without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.start.prefetch.expects_cpu", lambda: True)


def limits(progress: Progress | None = None) -> LoadLimits:
    return LoadLimits(None, progress or Progress(), STAGING_BYTES)


def checkpoint(path: Path = DEMO) -> LocatedCheckpoint:
    return locate(str(path), LocalSource)


def begin(
    plan: "Future[EnginePlan]",
    located: LocatedCheckpoint,
    *,
    progress: Progress | None = None,
    **settings,
):
    expected = expected_weights(Settings(**settings), located)
    assert expected is not None
    return load_ahead(located, expected, plan, limits(progress))


def done(plan: EnginePlan) -> "Future[EnginePlan]":
    future: Future[EnginePlan] = Future()
    future.set_result(plan)
    return future


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_what_is_loaded_is_what_the_plan_would_have_loaded(dtype: str):
    located = checkpoint()
    plan = plan_engine(Settings(dtype=dtype), located, CPU)
    ahead = begin(done(plan), located, dtype=dtype)
    usual = load_checkpoint(located, plan.specs, plan.dtype, mesh=plan.mesh, limits=limits()).weights
    assert ahead is not None
    weights = plan.mesh.alias_host_arrays(ahead.weights)
    assert list(weights) == list(usual)
    for name, weight in weights.items():
        np.testing.assert_array_equal(np.asarray(weight), np.asarray(usual[name]))


def test_weights_lie_where_they_are_read_fastest_and_are_taken_over_without_a_copy():
    located = checkpoint()
    plan = plan_engine(Settings(), located, CPU)
    ahead = begin(done(plan), located)
    assert ahead is not None
    places = {name: weight.ctypes.data for name, weight in ahead.weights.items()}
    assert {place % BANKS_BYTES for place in places.values()} == {BANK_OFFSET_BYTES}
    taken = plan.mesh.alias_host_arrays(ahead.weights)
    assert {name: weight.unsafe_buffer_pointer() for name, weight in taken.items()} == places


def test_it_is_whole_before_there_is_a_plan():
    located, plan, progress = checkpoint(), Future(), Progress()
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(begin(plan, located, progress=progress)))
    thread.start()
    give_up_s = time.monotonic() + 30
    while progress.bytes_done < (DEMO / "model.safetensors").stat().st_size:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    assert thread.is_alive()  # it waits for the plan's word
    plan.set_result(plan_engine(Settings(), located, CPU))
    thread.join(30)
    assert loaded[0] is not None


def test_another_plan_has_the_last_word():
    located = checkpoint()
    assert begin(done(plan_engine(Settings(dtype="bfloat16"), located, CPU)), located) is None
    if len(jax.devices()) > 1:
        assert begin(done(plan_engine(Settings(tensor_parallel=2), located, jax.devices())), located) is None


def test_what_the_plan_failed_with_is_told():
    plan: Future[EnginePlan] = Future()
    plan.set_exception(SettingsError("MAX_MODEL_LEN", "is too much."))
    with pytest.raises(SettingsError, match="MAX_MODEL_LEN"):
        begin(plan, checkpoint())


def test_bytes_that_are_wrong_are_told_without_a_plan(tmp_path: Path):
    broken = Path(shutil.copytree(DEMO, tmp_path / "broken"))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MalformedCheckpoint):
        begin(Future(), checkpoint(broken))


def test_nothing_is_expected_where_the_plan_may_say_otherwise(monkeypatch: pytest.MonkeyPatch):
    located = checkpoint()
    assert expected_weights(Settings(tensor_parallel=2), located) is None
    with monkeypatch.context() as patch:
        patch.setattr("service.start.prefetch.host_memory_bytes", lambda: 1024)
        assert expected_weights(Settings(), located) is None
    located.hub_config["model_type"] = "mamba"  # the plan says what is wrong with it
    assert expected_weights(Settings(), located) is None
    monkeypatch.setattr("service.start.prefetch.expects_cpu", lambda: False)
    assert expected_weights(Settings(), checkpoint()) is None
