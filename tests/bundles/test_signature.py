"""With a key, only what was signed with it is unpickled."""

import json
import pickle

import pytest

from service.bundles.bundle import MANIFEST_NAME, Bundle, Manifest, describe_file
from service.bundles.folder import BundleFolder
from service.bundles.lookup import BundlePlaces
from service.bundles.signature import Signer
from service.observability.metrics import Metrics
from service.settings import Settings
from tests.bundles.bundles import KEY

OLD, NEW = "o" * 32, "n" * 32
NAMES = ["double"]


class Canary:
    """A pickle that leaves a trace when it is read."""

    def __reduce__(self):
        return open, ("canary-has-run", "w")


@pytest.fixture
def bundle() -> Bundle:
    """A bundle that is consistent in itself, whoever has made it."""
    data = {"double": pickle.dumps(Canary())}
    return Bundle(Manifest(KEY.digest, KEY.inputs, {"double": describe_file("double", data["double"], 1.0)}, {}), data)


@pytest.fixture
def folder(tmp_path) -> BundleFolder:
    return BundleFolder(tmp_path / "bundles")


def places(folder: BundleFolder, *keys: str) -> BundlePlaces:
    return BundlePlaces([folder], Metrics(), signer=Signer(keys))


def outcome(folder: BundleFolder, *keys: str) -> str:
    searched = places(folder, *keys)
    found = searched.find([KEY], NAMES)
    assert (found is not None) == (searched.outcome == "hit")
    return searched.outcome


@pytest.mark.parametrize(
    ("signed_by", "verified_by", "expected"),
    [
        ([], [], "hit"),
        ([], [NEW], "unsigned"),
        ([OLD], [NEW], "unsigned"),
        ([OLD], [OLD], "hit"),
        ([OLD], [NEW, OLD], "hit"),
        ([NEW, OLD], [NEW], "hit"),
        ([NEW, OLD], [OLD], "unsigned"),
        ([OLD], [], "hit"),
    ],
)
def test_the_first_key_signs_and_all_verify(bundle, folder, signed_by, verified_by, expected):
    assert places(folder, *signed_by).store(bundle) == [folder.uri]
    assert outcome(folder, *verified_by) == expected


def test_what_is_refused_is_replaced_by_what_is_compiled(bundle, folder):
    places(folder).store(bundle)
    assert outcome(folder, NEW) == "unsigned"
    assert places(folder, NEW).store(bundle) == [folder.uri]
    assert outcome(folder, NEW) == "hit"


@pytest.mark.parametrize("signature", [None, "", "0" * 64, 7, ["a"], "é"])
def test_a_signature_that_is_not_one_is_refused(bundle, folder, tmp_path, signature):
    places(folder, NEW).store(bundle)
    path = tmp_path / "bundles" / KEY.digest / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"signature": signature}))
    assert outcome(folder, NEW) == "unsigned"


@pytest.mark.parametrize("field", ["executables", "making", "inputs", "key", "added"])
def test_a_signature_covers_every_field(bundle, folder, tmp_path, field):
    places(folder, NEW).store(bundle)
    path = tmp_path / "bundles" / KEY.digest / MANIFEST_NAME
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {field: {"double": content["executables"]["double"] | {"size_bytes": 1}}}))
    assert outcome(folder, NEW) == "unsigned"


def test_executables_that_an_earlier_start_has_kept_are_signed_too(folder):
    signed, unsigned = folder.partial("a", Signer([NEW])), folder.partial("b")
    signed.add("double", b"code", 1.0)
    unsigned.add("double", b"code", 1.0)
    assert [data for _, data in folder.partial("a", Signer([OLD, NEW])).read().values()] == [b"code"]
    assert folder.partial("a", Signer([OLD])).read() == {}
    assert folder.partial("b", Signer([NEW])).read() == {}
    assert [data for _, data in folder.partial("b").read().values()] == [b"code"]


def test_a_kept_executable_belongs_to_its_bundle_alone(folder, tmp_path):
    folder.partial("a", Signer([NEW])).add("double", b"code", 1.0)
    (tmp_path / "bundles" / "a").rename(tmp_path / "bundles" / "b")
    assert folder.partial("b", Signer([NEW])).read() == {}


def test_the_settings_name_the_keys(bundle, tmp_path):
    settings = Settings(local_model_cache=tmp_path, bundle_signing_key=f"{NEW}, {OLD}")
    BundlePlaces.of_settings(settings, str(tmp_path), Metrics()).store(bundle)
    stored = BundleFolder(tmp_path / "bundles")
    assert outcome(stored, NEW) == "hit"
    assert outcome(stored, OLD) == "unsigned"
