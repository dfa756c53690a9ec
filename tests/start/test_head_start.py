"""A start with an EAGLE-3 head at DRAFT_MODEL_URI: it is recognized, planned, loaded and asked, or refused by name."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import SettingsError, UnsupportedModel
from service.models.eagle3 import TENSORS, eagle3_weight_specs, read_eagle3
from service.models.quantization import Quantization
from service.observability.metrics import Metrics
from service.observability.progress import Progress
from service.settings.sources import load_settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.kinds.draft_spec import without_prefix
from service.start.progress import StartProgress
from service.start.tasks import check_draft
from service.storage.local import LocalSource
from tests.engine.eagle3_reference import Sizes, make_tensors
from tests.process import running_service
from tests.served import DEMO, outcomes_of, prewarm, stats_of
from tests.start.test_draft_start import DRAFTING, answer, counted, plan

OF_DEMO = Sizes(vocab=3072, hidden=256, heads=4, kv_heads=2, head_dim=64, mlp=512, layers=4, drafted=1000)
TAPS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
CONFIG = {**OF_DEMO.head_config, **TAPS}
FORMATS = (np.dtype(np.float32), Quantization.NONE, None)
NAMES = ("d2t", "fc.weight", "midlayer.self_attn.q_proj.weight", "lm_head.weight")


def write_head(folder, **values):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | values))
    _, tensors = make_tensors(OF_DEMO)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def plan_head(target=None, **values):
    return plan(target=target, draft={**CONFIG, TENSORS: NAMES, **values})


def test_a_head_needs_no_tokenizer_and_its_tensors_are_loaded_beside_the_targets(tmp_path):
    tensors = write_head(tmp_path / "head")
    settings = {"draft_model_uri": str(tmp_path / "head"), "local_model_cache": tmp_path / "cache", **DRAFTING}
    metrics = Metrics()
    context = StartContext(load_settings(settings, None), metrics, StartProgress(metrics))
    located = locate_checkpoint(context)
    check_draft(context, located, SimpleNamespace())
    spec = plan_head()
    limits = LoadLimits(None, Progress(), 1 << 20)
    loaded = load_on_host(located.draft, spec.draft.named_specs, limits).weights
    own = without_prefix(loaded, is_draft=True)
    assert {"fc", "ids", "unembed", "layers.0.embedding_norm"} <= own.keys()
    assert "embed" not in own
    np.testing.assert_array_equal(own["ids"], tensors["d2t"])
    np.testing.assert_array_equal(own["fc"].astype(np.float32), tensors["fc.weight"].astype(own["fc"].dtype))


def test_it_costs_two_executables_and_what_it_keeps_of_each_position_and_nothing_without_it():
    alone, both = plan(with_draft=False), plan_head()
    assert both.shapes.taps == (1, 2, 3)
    assert alone.shapes.taps is None
    assert [name for name in both.names.every if name not in alone.names.every] == ["draft-read", "draft-draft"]
    itemsize = both.dtype.itemsize
    kept = itemsize * (3 * 256 + 2 * 2 * 64)
    num_positions = alone.shapes.num_pages * alone.shapes.page_size
    assert both.shapes.num_pages == alone.shapes.num_pages
    of_weights = sum(spec.num_bytes for spec in both.draft.specs)
    assert both.memory_bytes - alone.memory_bytes == pytest.approx(of_weights + kept * num_positions, rel=0.01)
    assert both.key.differences(alone.key.inputs) == ["draft", "shapes"]


def test_a_head_of_speculators_is_the_same_under_other_names():
    top = {"draft_vocab_size", "eagle_config", "architectures"}
    layer = {key: value for key, value in CONFIG.items() if key not in top}
    values = {
        **{"speculators_model_type": "eagle3", "transformer_layer_config": layer, "target_hidden_size": None},
        **{"draft_vocab_size": 1000, "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "norm_before_residual": True},
        **{"architectures": ["Eagle3Speculator"], TENSORS: (*NAMES[:2], "embed_tokens.weight", "layers.0.hidden_norm")},
    }
    found = read_eagle3("small", values, 4)
    plain = read_eagle3("small", {**CONFIG, TENSORS: NAMES, "norm_before_residual": True}, 4)
    assert found == replace(plain, layer_name="layers.0.", has_embeddings=True)
    names = {source.name for spec in eagle3_weight_specs(found, *FORMATS) for source in spec.sources}
    assert {"embed_tokens.weight", "layers.0.hidden_norm.weight", "layers.0.self_attn.q_proj.weight", "d2t"} <= names
    with pytest.raises(UnsupportedModel, match="norm_before_fc = True"):
        read_eagle3("small", {**values, "norm_before_fc": True}, 4)
    with pytest.raises(UnsupportedModel, match="model_type = 'qwen3'"):
        read_eagle3("small", {**values, "transformer_layer_config": {**layer, "model_type": "qwen3"}}, 4)


OTHER_BASE = r"DRAFT_MODEL_URI: small is a head for a model whose"


@pytest.mark.parametrize(
    ("values", "error", "reason"),
    [
        ({"target_hidden_size": 512}, SettingsError, rf"{OTHER_BASE} hidden_size is 512, and that of the model is 256"),
        ({"hidden_size": 128}, SettingsError, rf"{OTHER_BASE} hidden_size is 128"),
        ({"hidden_size": 128, "target_hidden_size": 256}, SettingsError, rf"{OTHER_BASE} embedding size is 128"),
        ({"vocab_size": 5000}, SettingsError, rf"{OTHER_BASE} vocab_size is 5,000, and that of the model is 3,072"),
        ({"eagle_config": None}, UnsupportedModel, "before the layers 2, 2, 1, which are no 3 of the 4"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 5]}},
            UnsupportedModel,
            "before the layers 1, 2, 6",
        ),
        ({"eagle_config": {"use_aux_hidden_state": False}}, UnsupportedModel, "use_aux_hidden_state = False"),
        ({"num_hidden_layers": 2}, UnsupportedModel, "num_hidden_layers = 2"),
        ({"parallel_drafting": True}, UnsupportedModel, "parallel_drafting = True"),
        ({"norm_output": True}, UnsupportedModel, "norm_output = True"),
        ({TENSORS: ("fc.weight",)}, UnsupportedModel, "draft_vocab_size is 1000, and no tensor d2t"),
        (
            {"architectures": ["MedusaModel"]},
            SettingsError,
            r"small is a head \(MedusaModel\) of another kind than EAGLE-3",
        ),
    ],
    ids=str,
)
def test_a_head_for_another_base_or_of_another_kind_is_refused_by_name(values, error, reason):
    with pytest.raises(error, match=reason):
        plan_head(**values)


def test_a_head_is_no_model_by_itself(tmp_path):
    write_head(tmp_path / "head")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "head" / name).write_text((DEMO / name).read_text())
    located = locate(str(tmp_path / "head"), LocalSource)
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLMEagle3'], a head, which drafts for another model"):
        plan(target=dict(located.hub_config), with_draft=False)


@pytest.mark.slow
def test_a_service_drafts_with_a_head_from_the_bundle_that_prewarm_made(tmp_path):
    write_head(tmp_path / "head")
    common = {"model_name": "levserve-demo", "draft_model_uri": str(tmp_path / "head"), **DRAFTING}
    code, lines = prewarm(tmp_path / "cache", **common)
    assert code == 0, lines
    asked = ({"temperature": 0}, {"temperature": 1.3, "n": 3}, {"temperature": 0, "stop": ["is", ". "]})
    with running_service(**common, admin_api_key="operator", local_model_cache=tmp_path / "cache") as service:
        assert outcomes_of(service) == {"hit": 1}
        drafted = [answer(service, **options) for options in asked]
        assert stats_of(service)["compiles"] == counted(service, "xla_compiles_after_ready") == 0
        assert counted(service, "spec_decode_num_draft_tokens") > 20
    plain = {name: value for name, value in common.items() if name not in ("speculation", "draft_model_uri")}
    with running_service(**plain, local_model_cache=tmp_path / "cache") as service:
        assert [answer(service, **options) for options in asked] == drafted
