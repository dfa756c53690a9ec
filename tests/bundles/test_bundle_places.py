"""The places of bundles, and their faults, each of which costs a compilation at most."""

import json
import logging
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from service.bundles.bundle import MANIFEST_NAME
from service.bundles.folder import BundleFolder
from service.bundles.key import BundleKey
from service.bundles.location import sibling_uri
from service.bundles.lookup import BundlePlaces
from service.bundles.prefetch import prefetch_bundle
from service.compile.program import load_executable
from service.errors import SettingsError
from service.observability.metrics import Metrics
from service.settings import Settings
from service.storage.entries import Entries
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from tests.bundles.bundles import KEY, NAMES, small_bundle
from tests.fault_proxy import Fault

pytestmark = pytest.mark.usefixtures("compiled_anew")


@pytest.fixture(scope="module")
def bundle():
    return small_bundle()


@pytest.fixture
def local(tmp_path):
    return BundleFolder(tmp_path / "cache" / "bundles")


def bucket_of(gcs_bucket) -> Entries:
    location = GcsLocation(gcs_bucket.name, "shared/bundles")
    return Entries(BucketStore(location, emulator_host=gcs_bucket.endpoint), MANIFEST_NAME)


def find(*places, keys=(KEY,), names=NAMES):
    """Return outcome and bundle of a search, and check that it was counted."""
    metrics = Metrics()
    bundles = BundlePlaces(places, metrics)
    found = bundles.find(keys, names)
    bundles.close()
    counts = {
        s.labels["outcome"]: s.value for s in metrics.bundle_load.collect()[0].samples if s.name.endswith("_total")
    }
    assert counts == {bundles.outcome: 1}
    return bundles.outcome, found


def keep(bundle, *places) -> list[str]:
    bundles = BundlePlaces(places, Metrics())
    kept = bundles.store(bundle)
    bundles.close()
    return kept


def bundle_folder(local):
    [folder] = Path(local.uri).iterdir()
    return folder


def test_a_bundle_kept_in_a_bucket_is_found_by_a_machine_with_an_empty_cache(bundle, local, gcs_bucket):
    assert find(bucket_of(gcs_bucket)) == ("miss", None)
    assert keep(bundle, bucket_of(gcs_bucket)) == [gcs_bucket.uri("shared/bundles")]
    outcome, found = find(local, bucket_of(gcs_bucket))
    assert outcome == "hit"
    double = load_executable(found.data["double"], jax.devices()[:1])
    assert double((), [], np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert keep(found, local, bucket_of(gcs_bucket)) == [local.uri]
    assert find(local)[0] == "hit"


def test_a_second_writer_to_a_bucket_changes_nothing(bundle, gcs_bucket):
    first, second = bucket_of(gcs_bucket), bucket_of(gcs_bucket)
    assert (find(first)[0], find(second)[0]) == ("miss", "miss")  # both saw an empty place before either wrote
    assert keep(bundle, first)
    assert keep(small_bundle(), second) == []
    outcome, found = find(bucket_of(gcs_bucket))
    assert outcome == "hit"
    assert found.manifest == bundle.manifest


@pytest.mark.parametrize("fault", [
    Fault(match="manifest.json.*alt=media", flipped_byte=40, times=9),
    Fault(match="executable.*alt=media", flipped_byte=40, times=9),
    Fault(match="manifest.json.*alt=media", status=403, times=9),
])  # fmt: skip
def test_a_bucket_that_cannot_be_read_means_to_compile(bundle, gcs_bucket, caplog, fault):
    keep(bundle, bucket_of(gcs_bucket))
    gcs_bucket.server.proxy.set_faults([fault])
    with caplog.at_level(logging.WARNING):
        assert find(bucket_of(gcs_bucket)) == ("miss", None)
    assert "compiling instead" in caplog.text


def test_a_bundle_is_read_without_a_listing_and_each_file_with_a_request_for_its_bytes_alone(bundle, gcs_bucket):
    keep(bundle, bucket_of(gcs_bucket))
    gcs_bucket.faults([])
    assert find(bucket_of(gcs_bucket))[0] == "hit"
    assert gcs_bucket.requests() == gcs_bucket.media_requests()
    assert len(set(gcs_bucket.media_requests())) == 1 + len(NAMES)


def test_one_flipped_bit_on_the_way_is_read_again(bundle, gcs_bucket):
    keep(bundle, bucket_of(gcs_bucket))
    gcs_bucket.server.proxy.set_faults([Fault(match="executable.*alt=media", flipped_byte=40)])
    assert find(bucket_of(gcs_bucket))[0] == "hit"


def test_a_bucket_that_may_not_be_written_is_a_log_line(bundle, gcs_bucket, caplog):
    gcs_bucket.server.proxy.set_faults([Fault(match="POST ", status=403, times=99)])
    with caplog.at_level(logging.WARNING):
        assert keep(bundle, bucket_of(gcs_bucket)) == []
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "storage.objects.create" in record.reason
    assert find(bucket_of(gcs_bucket))[0] == "miss"


def test_an_object_replaced_by_a_canary_is_refused_and_then_replaced(bundle, gcs_bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep(bundle, bucket_of(gcs_bucket))
    name = bundle.manifest.executables["sum"].file
    canary = pickle.dumps(_Canary()).ljust(len(bundle.data["sum"]), b"\0")
    gcs_bucket.upload(f"shared/bundles/{KEY.digest}/{name}", canary)
    place = bucket_of(gcs_bucket)
    assert find(place)[0] == "corrupt"
    assert not (tmp_path / "canary").exists()
    assert keep(bundle, place) == [place.uri]
    assert find(bucket_of(gcs_bucket))[0] == "hit"


class _Canary:
    def __reduce__(self):
        return open, ("canary", "w")


def test_a_corrupt_copy_here_is_taken_away_and_the_shared_one_is_used(bundle, local, tmp_path):
    shared = BundleFolder(tmp_path / "shared", is_private=False)
    keep(bundle, local, shared)
    (bundle_folder(local) / bundle.manifest.executables["sum"].file).write_bytes(b"short")
    outcome, found = find(local, shared)
    assert outcome == "hit"
    assert keep(found, local, shared) == [local.uri]
    assert find(local)[0] == "hit"


@pytest.mark.parametrize(
    ("manifest", "outcome"),
    [
        (b"", "corrupt"),
        (b"\x80\x04garbage", "corrupt"),
        (json.dumps({"format_version": 0}).encode(), "stale"),
        (None, "miss"),
    ],
)
def test_what_is_no_manifest_is_no_bundle(bundle, local, manifest, outcome):
    keep(bundle, local)
    path = bundle_folder(local) / MANIFEST_NAME
    path.unlink() if manifest is None else path.write_bytes(manifest)
    assert find(local) == (outcome, None)


def test_a_bundle_of_another_jax_under_our_name_is_stale(bundle, local):
    other = BundleKey(KEY.inputs | {"packages": {"jax": "0.1"}})
    keep(bundle, local)
    bundle_folder(local).rename(bundle_folder(local).with_name(other.digest))
    assert find(local, keys=[other]) == ("stale", None)
    assert keep(bundle, local)


def test_a_bundle_that_lacks_an_executable_is_corrupt(bundle, local):
    keep(bundle, local)
    assert find(local, names=[*NAMES, "product"]) == ("corrupt", None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_read_and_a_log_line_when_written(bundle, local, caplog):
    keep(bundle, local)
    Path(local.uri).chmod(0o500)
    assert find(local)[0] == "hit"
    assert keep(small_bundle(BundleKey({"other": 1})), local) == []
    assert "could not be stored" in caplog.text
    Path(local.uri).chmod(0o700)


def test_a_cache_that_is_a_file_is_a_log_line(bundle, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert find(BundleFolder(tmp_path / "file")) == ("miss", None)
    assert keep(bundle, BundleFolder(tmp_path / "file")) == []
    assert "could not be stored" in caplog.text


def test_a_miss_says_in_what_the_nearest_bundle_differs(bundle, local, caplog):
    keep(bundle, local)
    with caplog.at_level(logging.INFO):
        find(local, keys=[BundleKey(KEY.inputs | {"packages": {"jax": "2"}})])
    [record] = [record for record in caplog.records if "no bundle" in record.message]
    assert record.nearest_differs_in == ["packages"]


def test_the_bundle_of_a_later_key_is_taken_where_no_place_has_that_of_an_earlier_one(bundle, local, tmp_path):
    better = BundleKey(KEY.inputs | {"driver": "535"})
    elsewhere = BundleFolder(tmp_path / "shared")
    keep(bundle, local)
    assert find(local, elsewhere, keys=[better, KEY])[1].manifest.key == KEY.digest
    keep(small_bundle(better), elsewhere)
    assert find(local, elsewhere, keys=[better, KEY])[1].manifest.key == better.digest


def test_a_sibling_lies_beside_the_checkpoint():
    assert sibling_uri("gs://bucket/models/mine") == "gs://bucket/models/.levserve-bundles"
    assert sibling_uri("gs://bucket/mine") == "gs://bucket/.levserve-bundles"
    assert sibling_uri("gs://bucket") is None
    assert sibling_uri("/models/mine") == "/models/.levserve-bundles"
    assert sibling_uri("hf://org/name") is None


def test_bundles_cannot_be_shared_through_the_hub(tmp_path):
    settings = Settings(local_model_cache=tmp_path, bundle_uri="hf://org/name")
    with pytest.raises(SettingsError, match="BUNDLE_URI"):
        BundlePlaces.of_settings(settings, "/models/mine", Metrics())


@pytest.mark.parametrize("is_corrupt", [False, True])
def test_prefetched_bytes_are_checked_all_the_same(bundle, local, tmp_path, is_corrupt):
    keep(bundle, local)
    folder = tmp_path / "cache" / "bundles"
    files = [path for path in (folder / KEY.digest).iterdir() if path.name != MANIFEST_NAME]
    if is_corrupt:
        files[0].write_bytes(files[0].read_bytes()[:-1] + b"?")
    prefetched = prefetch_bundle(folder)
    for file in files:
        file.write_bytes(b"what nobody reads")
    bundles = BundlePlaces([BundleFolder(folder, prefetched=prefetched)], Metrics(), prefetched)
    found = bundles.find([KEY], NAMES)
    assert (bundles.outcome, found is None) == (("corrupt", True) if is_corrupt else ("hit", False))
    if found is not None:
        assert dict(found.data) == dict(bundle.data)
