"""Whoever may write to BUNDLE_URI puts code there: a process that verifies signatures answers without executing it."""

import json
import shutil
from dataclasses import asdict

import httpx
import pytest

from service.bundles.bundle import MANIFEST_NAME, describe_file
from tests.process import running_service
from tests.served import SMALL, outcomes_of
from tests.weights.pickled.corpus import SING
from tests.weights.pickled.written import call, pickled


def poison(folder):
    """Replace every executable of a bundle by a pickle that leaves a trace, and make the manifest consistent."""
    content = json.loads((folder / MANIFEST_NAME).read_text())
    for name in content["executables"]:
        described = describe_file(name, pickled(call(SING)), 1.0)
        (folder / described.file).write_bytes(pickled(call(SING)))
        content["executables"][name] = asdict(described)
    (folder / MANIFEST_NAME).write_text(json.dumps(content))


@pytest.mark.slow
def test_a_bundle_without_our_signature_is_not_unpickled_and_requests_are_answered(tmp_path, one_sequence):
    shared, trace = tmp_path / "shared", tmp_path / "trace"
    shutil.copytree(one_sequence.shared, shared)
    manifests = list(shared.rglob(MANIFEST_NAME))
    assert manifests
    for manifest in manifests:
        poison(manifest.parent)
    settings = {"local_model_cache": tmp_path / "cache", "bundle_uri": shared, "levserve_test_canary": trace}
    with running_service(**SMALL, **settings, bundle_signing_key="n" * 32) as service:
        body = {"model": "levserve-demo", "prompt": "The sky is", "max_tokens": 6}
        answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
        outcomes = outcomes_of(service)
    assert answer.status_code == 200
    assert outcomes == {"unsigned": 1}
    assert not trace.exists()
