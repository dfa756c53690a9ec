"""A Levanter run loads the weights that were saved, from a folder, through the cache and past it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.checkpoint.discover import locate
from service.errors import CorruptObject, MalformedCheckpoint
from service.storage.local import LocalSource
from tests.checkpoint.streamed import CONFIG, OBJECTS, TENSORS, Loader, same_weights
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket
from tests.levanter_run import save_step
from tests.stored import contents

# Importing Levanter takes ten seconds of a processor, so one worker runs all that does.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("levanter")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose third step holds the weights of `streamed`, with a configuration and a tokenizer."""
    folder = tmp_path_factory.mktemp("run")
    save_step(folder, 3, CONFIG, {name: tensor.astype(np.float32) for name, tensor in TENSORS.items()})
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes(OBJECTS[name])
    return folder


@pytest.fixture
def levanter_loader(run: Path, gcs_bucket: GcsBucket, tmp_path: Path) -> Loader:
    gcs_bucket.upload_directory(run, "run")
    return Loader(gcs_bucket.endpoint, gcs_bucket.name, tmp_path / "cache", prefix="run")


def test_a_folder_of_this_machine_gives_the_weights_and_stays(run: Path, levanter_loader: Loader):
    before = contents(run)
    assert same_weights(levanter_loader.load_located(locate(str(run), LocalSource)))
    assert contents(run) == before


def test_a_bucket_gives_the_weights_and_a_second_start_fetches_nothing(levanter_loader: Loader, gcs_bucket: GcsBucket):
    assert same_weights(levanter_loader.load())
    [folder] = levanter_loader.visible()
    assert (folder / "step-3" / "manifest.json").is_file()
    gcs_bucket.faults([])
    assert same_weights(levanter_loader.load())
    assert not gcs_bucket.requests("step-3%2Fd.*alt=media")


def test_without_a_cache_no_byte_is_left(levanter_loader: Loader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("service.storage.cache.cache.private_folder", lambda: tmp_path / "private")
    assert same_weights(levanter_loader.load(is_cached=False))
    assert not levanter_loader.root.exists()
    left = [path for path in (tmp_path / "private").rglob("*") if path.is_file()]
    assert left  # the locks
    assert sum(path.stat().st_size for path in left) == 0


def test_a_bit_that_flips_once_leaves_the_right_weights_and_one_that_stays_is_refused(
    levanter_loader: Loader, gcs_bucket: GcsBucket
):
    # TensorStore itself takes such a chunk for right.
    gcs_bucket.faults([Fault("step-3%2Fd.*alt=media", flipped_byte=5)])
    assert same_weights(levanter_loader.load(is_cached=False))
    assert gcs_bucket.hits()
    gcs_bucket.faults([Fault("step-3%2Fd.*alt=media", times=1000, flipped_byte=5)])
    with pytest.raises(CorruptObject):
        levanter_loader.load()
    assert not levanter_loader.visible()


def test_a_step_of_another_shape_is_refused_by_name(run: Path, levanter_loader: Loader):
    located = locate(str(run), LocalSource)
    run_of_other_size = {**located.hub_config["levanter"], "intermediate_dim": 161}
    wider = replace(located, hub_config={**located.hub_config, "levanter": run_of_other_size})
    with pytest.raises(MalformedCheckpoint):
        levanter_loader.load_located(wider)
