"""A start with DRAFT_MODEL_URI: the draft model is found, planned, compiled ahead of time, loaded and asked."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import SettingsError, UnsupportedModel
from service.observability.metrics import Metrics
from service.observability.progress import Progress
from service.settings import Settings
from service.settings.sources import load_settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.kinds.draft_spec import without_prefix
from service.start.kinds.engine_spec import choose_engine_spec
from service.start.progress import StartProgress
from service.start.tasks import check_draft, load_text, pull_tokenizer_files
from service.storage.local import LocalSource
from tests.device.devices import NamedDevice
from tests.process import ServiceProcess, running_service
from tests.served import DEMO, outcomes_of, prewarm, stats_of

DRAFTING = {"max_num_seqs": "4", "max_model_len": "256", "max_prefill_tokens": "64", "speculation": "draft"}


def answer(service: ServiceProcess, **options) -> tuple[list[tuple[list[str], str, str]], Any]:
    made = service.client().completions.create(
        model="levserve-demo", prompt="The capital of", max_tokens=40, logprobs=1, seed=3, **options
    )
    return [(choice.logprobs.tokens, choice.text, choice.finish_reason) for choice in made.choices], made.usage


def counted(service: ServiceProcess, name: str) -> float:
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    names = (f"levserve_{name}_total{{", f"levserve_{name}_total ")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


@pytest.mark.slow
def test_a_service_drafts_with_a_model_from_the_bundle_that_prewarm_made(tmp_path):
    shutil.copytree(DEMO, tmp_path / "draft")
    common = {"model_name": "levserve-demo", "draft_model_uri": str(tmp_path / "draft"), **DRAFTING}
    code, lines = prewarm(tmp_path / "cache", **common)
    assert code == 0, lines
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    asked = (
        {"temperature": 0},
        {"temperature": 1.3, "n": 3},
        {"temperature": 0.8, "top_p": 0.7, "presence_penalty": 0.5},
        {"temperature": 0, "stop": ["is", ". "]},
        {"temperature": 0, "extra_body": {"ignore_eos": True}},
        {"temperature": 0.5, "extra_body": {"structured_outputs": {"json": schema}}},
    )
    with running_service(**common, admin_api_key="operator", local_model_cache=tmp_path / "cache") as service:
        assert outcomes_of(service) == {"hit": 1}
        drafted = [answer(service, **options) for options in asked]
        assert stats_of(service)["compiles"] == counted(service, "xla_compiles_after_ready") == 0
        num_drafted, num_accepted = (
            counted(service, f"spec_decode_num_{what}") for what in ("draft_tokens", "accepted_tokens")
        )
        assert 20 < num_accepted < num_drafted
    plain = {name: value for name, value in common.items() if name not in ("speculation", "draft_model_uri")}
    with running_service(**plain, local_model_cache=tmp_path / "cache") as service:
        assert [answer(service, **options) for options in asked] == drafted


def test_a_start_refuses_a_draft_model_of_another_tokenizer(tmp_path):
    shutil.copytree(DEMO, tmp_path / "draft")

    def check() -> None:
        settings = {"draft_model_uri": str(tmp_path / "draft"), "local_model_cache": tmp_path / "cache", **DRAFTING}
        metrics = Metrics()
        context = StartContext(load_settings(settings, None), metrics, StartProgress(metrics))
        located = locate_checkpoint(context)
        check_draft(context, located, load_text(context, located, pull_tokenizer_files(context, located)))

    check()
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, other = list(vocab)[1000:1002]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SettingsError, match=r"DRAFT_MODEL_URI: .*draft has another tokenizer than the model: "):
        check()


def plan(target=None, draft=None, *, devices: int = 1, with_draft: bool = True, **settings):
    """Plan the demo model with another as its draft model; both may differ from the demo in values of config.json."""
    client = SimpleNamespace(platform_version="1")
    mesh = [NamedDevice(index, client=client, limit_bytes=80_000_000) for index in range(devices)]
    demo = locate(str(DEMO), LocalSource)
    drafting = replace(demo, uri="small", hub_config={**demo.hub_config, **(draft or {})})
    located = replace(demo, hub_config={**demo.hub_config, **(target or {})}, draft=drafting if with_draft else None)
    address = {"draft_model_uri": "small", "speculation": "draft"} if with_draft else {"speculation": "auto"}
    chosen = {"max_prefill_tokens": 256, "max_model_len": 1024, "max_num_seqs": 8}
    return choose_engine_spec(Settings(**{**chosen, **address, **settings}), located, mesh)


def test_its_weights_and_the_twin_of_each_page_are_planned_and_keyed():
    alone, both = plan(with_draft=False), plan()
    assert both.weights_bytes == 2 * alone.weights_bytes
    assert both.shapes == alone.shapes
    pages_bytes = alone.shapes.num_pages * 16 * 2 * 4 * 2 * 64 * 2
    assert both.memory_bytes - alone.memory_bytes == alone.weights_bytes + pages_bytes
    assert both.key.differences(alone.key.inputs) == ["draft"]
    assert both.names.every[: len(alone.names.every)] == alone.names.every
    assert both.names.every[len(alone.names.every) :] == [
        "draft-read",
        "draft-draft",
    ]
    assert both.names.first == alone.names.first
    shallow = plan(draft={"num_hidden_layers": 1})
    assert shallow.weights_bytes < both.weights_bytes
    assert shallow.key.differences(both.key.inputs) == ["draft"]
    small = plan(devices=2, draft={"num_hidden_layers": 1})
    assert small.mesh.num_devices == 2


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_its_weights_are_loaded_under_names_of_their_own(quantization):
    spec, located = plan(quantization=quantization), locate(str(DEMO), LocalSource)
    limits = LoadLimits(None, Progress(), 1 << 20)
    own, beside = (load_on_host(located, specs, limits).weights for specs in (spec.draft.specs, spec.draft.named_specs))
    assert without_prefix(beside, is_draft=True).keys() == own.keys()
    assert without_prefix(beside, is_draft=False) == {}
    for name, array in own.items():
        np.testing.assert_array_equal(array, beside[f"draft.{name}"])


STATES = {
    **{"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "full_attention_interval": 2},
    **{"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    **{"linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25, "rope_parameters": {"rope_theta": 1e4}},
}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"draft": {"architectures": ["BertModel"], "model_type": "bert"}}, "small is an encoder"),
        (
            {"draft": {"architectures": ["LlamaForCausalLMEagle"]}},
            r"small is a head \(LlamaForCausalLMEagle\) of another",
        ),
        ({"draft": {"architectures": ["MedusaModel"], "model_type": "medusa"}}, r"small is a head \(MedusaModel\)"),
        ({"draft": STATES}, "small has layers that keep states"),
        ({"draft": {"num_attention_heads": 3, "num_key_value_heads": 3}, "devices": 2}, "num_attention_heads = 3"),
    ],
    ids=str,
)
def test_what_cannot_draft_is_refused_with_its_reason(values, reason):
    with pytest.raises(SettingsError, match=f"DRAFT_MODEL_URI: .*{reason}"):
        plan(**values)


@pytest.mark.parametrize("target", [{}, STATES], ids=["llama", "qwen"])
def test_a_start_needs_something_that_drafts(target):
    with pytest.raises(
        SettingsError, match="SPECULATION: is draft, which needs DRAFT_MODEL_URI: the checkpoint brings"
    ):
        plan(target=target, with_draft=False, speculation="draft")


def test_a_model_whose_layers_keep_states_is_drafted_for():
    spec = plan(target=STATES)
    assert spec.shapes.states is not None
    assert spec.shapes.num_drafts > 0
    assert spec.draft.config.num_layers == 4


def test_a_family_that_is_not_known_is_refused_by_its_address():
    with pytest.raises(UnsupportedModel, match="small"):
        plan(draft={"model_type": "gpt_unheard_of", "architectures": ["GptUnheardOf"]})


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"speculation": "draft", "catalogue_uri": "b"}, "SPECULATION: is draft, for which there is a single model"),
        ({"draft_model_uri": "a"}, "DRAFT_MODEL_URI: is set, and with SPECULATION=off it drafts nothing"),
        ({"draft_model_uri": "a", "speculation": "ngram"}, "DRAFT_MODEL_URI: is set, and with SPECULATION=ngram"),
        (
            {"draft_model_uri": "a", "speculation": "draft", "catalogue_uri": "b"},
            "DRAFT_MODEL_URI: drafts for a single model",
        ),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(settings, variable):
    with pytest.raises(SettingsError, match=variable):
        load_settings(settings, None)
