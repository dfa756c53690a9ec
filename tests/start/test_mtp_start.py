"""A start of a checkpoint that brings the layer which predicts its further tokens: found, planned, loaded and asked."""

import json
import logging
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import SettingsError
from service.models.mtp import HAS_MTP
from service.observability.progress import Progress
from service.settings import Settings
from service.start.kinds.draft_spec import without_prefix
from service.start.kinds.engine_spec import choose_engine_spec
from service.start.prefetch import loaded_specs
from service.storage.local import LocalSource
from tests.device.devices import NamedDevice
from tests.engine.mtp_reference import Sizes, make_tensors
from tests.process import running_service
from tests.served import DEMO, outcomes_of, prewarm, stats_of
from tests.start.test_draft_start import DRAFTING, answer, counted

OF_DEMO = Sizes(vocab=3072)
PLANNED = {"max_prefill_tokens": 256, "max_model_len": 256, "max_num_seqs": 8, "dtype": "float32"}


def write_model(folder, without=(), **further):
    """Write a model with the demo's tokenizer, and the layer; return its tensors."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / name, folder / name)
    (folder / "config.json").write_text(json.dumps({**OF_DEMO.hub_config, "torch_dtype": "float32"}))
    target, layer = make_tensors(OF_DEMO)
    layer = {name: tensor for name, tensor in (layer | further).items() if name not in without}
    save_file(target | layer, folder / "model.safetensors", metadata={"format": "pt"})
    return target, layer


def plan(folder, **settings):
    device = NamedDevice(0, client=SimpleNamespace(platform_version="1"), limit_bytes=80_000_000)
    return choose_engine_spec(Settings(**{**PLANNED, **settings}), locate(str(folder), LocalSource), [device])


def test_its_weights_are_loaded_beside_the_models_and_only_where_they_draft(tmp_path):
    target, layer = write_model(tmp_path / "model")
    alone, both = (plan(tmp_path / "model", speculation=mode) for mode in ("ngram", "auto"))
    assert alone.draft is None
    assert plan(tmp_path / "model").own_specs == alone.own_specs
    assert (alone.shapes.taps, both.shapes.taps) == (None, (OF_DEMO.layers,))
    assert [name for name in both.names.every if name not in alone.names.every] == ["draft-read", "draft-draft"]
    located, limits = locate(str(tmp_path / "model"), LocalSource), LoadLimits(None, Progress(), 1 << 20)
    loaded = load_on_host(located, both.own_specs, limits).weights
    own = without_prefix(loaded, is_draft=True)
    assert {"fc", "embedding_norm", "hidden_norm", "final_norm", "layers.0.attention_norm"} <= own.keys()
    assert own.keys().isdisjoint({"embed", "unembed"})
    np.testing.assert_array_equal(own["fc"], layer["mtp.fc.weight"])
    np.testing.assert_array_equal(own["final_norm"], layer["mtp.norm.weight"])
    np.testing.assert_array_equal(loaded["final_norm"], target["model.norm.weight"])
    kept = 4 * (OF_DEMO.hidden + 2 * OF_DEMO.kv_heads * OF_DEMO.head_dim) * both.shapes.num_pages * 16
    of_weights = sum(array.nbytes for array in own.values())
    # A position takes more bytes, so the states of long prompts are kept more often.
    more_states = both.shapes.states.num_states - alone.shapes.states.num_states
    of_states = more_states * both.config.state_bytes(4)
    assert both.memory_bytes - alone.memory_bytes == of_weights + kept + of_states


def test_a_prefetch_expects_what_the_plan_needs(tmp_path):
    write_model(tmp_path / "model")
    located = locate(str(tmp_path / "model"), LocalSource)
    for speculation in ("off", "auto"):
        settings = Settings(**PLANNED, speculation=speculation)
        names = [spec.name for spec in loaded_specs(settings, located)]
        assert names == [spec.name for spec in plan(tmp_path / "model", speculation=speculation).own_specs]


@pytest.mark.parametrize(
    "changes",
    [{"without": ("mtp.fc.weight",)}, {"mtp.layers.1.mlp.up_proj.weight": np.zeros((4, 4), np.float32)}],
    ids=["less", "more"],
)
def test_a_layer_of_another_kind_is_left_out_and_said(tmp_path, changes, caplog):
    write_model(tmp_path / "model", **changes)
    located = locate(str(tmp_path / "model"), LocalSource)
    assert HAS_MTP not in located.hub_config
    spec = plan(tmp_path / "model", speculation="auto")
    assert spec.draft is None
    with caplog.at_level(logging.INFO):
        load_on_host(located, spec.own_specs, LoadLimits(None, Progress(), 1 << 20))
    [left_out] = [record.left_out for record in caplog.records if hasattr(record, "left_out")]
    assert list(left_out) == ["layers that predict further tokens"]
    with pytest.raises(SettingsError, match="SPECULATION: is draft, which needs DRAFT_MODEL_URI"):
        plan(tmp_path / "model", speculation="draft")


def test_it_is_split_over_the_devices_as_its_model_is(tmp_path):
    write_model(tmp_path / "model")
    client = SimpleNamespace(platform_version="1")
    devices = [NamedDevice(index, client=client, limit_bytes=80_000_000) for index in range(2)]
    located = locate(str(tmp_path / "model"), LocalSource)
    spec = choose_engine_spec(Settings(**PLANNED, speculation="draft"), located, devices)
    assert spec.mesh.num_devices == 2
    assert replace(spec.draft.config, context_len=0).layers[0] == spec.config.layers[1]


@pytest.mark.slow
def test_a_service_drafts_with_it_from_the_bundle_that_prewarm_made(tmp_path):
    write_model(tmp_path / "model")
    common = {"model_name": "levserve-demo", "model_uri": str(tmp_path / "model"), **DRAFTING}
    code, lines = prewarm(tmp_path / "cache", **common)
    assert code == 0, lines
    asked = ({"temperature": 0}, {"temperature": 1.3, "n": 3}, {"temperature": 0, "stop": ["is", ". "]})
    with running_service(**common, admin_api_key="operator", local_model_cache=tmp_path / "cache") as service:
        assert outcomes_of(service) == {"hit": 1}
        drafted = [answer(service, **options) for options in asked]
        assert stats_of(service)["compiles"] == counted(service, "xla_compiles_after_ready") == 0
        assert counted(service, "spec_decode_num_draft_tokens") > 20
    plain = {name: value for name, value in common.items() if name != "speculation"}
    with running_service(**plain, local_model_cache=tmp_path / "cache") as service:
        assert [answer(service, **options) for options in asked] == drafted
