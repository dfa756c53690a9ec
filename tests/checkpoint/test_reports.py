"""Checkpoints as people report them: each trait of a report, and two more of its kind that no report has.

A trait is a change of a folder. What a start loads of it is what the folder of `like` gives, or the start and
`levserve check` refuse it for the reason that is stated. Of quantized checkpoints see test_published_quantization.py.
"""

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import InvalidParameter, StartError
from service.models.encoders.registry import any_encoder_weight_specs, is_encoder, read_encoder_config
from service.models.encoders.sentence import read_sentence_config
from service.models.registry import read_config
from service.models.weight_spec import FLOAT32
from service.observability.metrics import Metrics
from service.observability.progress import Progress
from service.offline.check import check
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.kinds.model_spec import TextFiles
from service.start.prefetch import weight_specs
from service.start.progress import StartProgress
from service.start.tasks import load_text, pull_tokenizer_files
from tests.encoder import tiny
from tests.parity.cases import CASES
from tests.parity.encoder_cases import ENCODER_CASES, tensor
from tests.parity.family_cases import FAMILY_CASES
from tests.served import DEMO
from tests.text.test_tokenizer_classes import ARCHIVE
from tests.weights.pickled.written import archive, pickled, state

type Change = Callable[[Path], object]

LLAMA, TIED = CASES[0], next(case for case in CASES if case.name == "llama_tied")
PHI3 = next(case for case in FAMILY_CASES if case.model_type == "phi3")
EMBED, HEAD, QUERY = "model.embed_tokens.weight", "lm_head.weight", "model.layers.1.self_attn.q_proj"
TEXTS = ("Who are you?<|im_end|>", "  Two  spaces, naïve ", "the Cat sat")
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
TOKENIZER, SENTENCE, POOLING = "tokenizer_config.json", "sentence_bert_config.json", "1_Pooling/config.json"


def written(folder: Path, name: str, content: object) -> None:
    """Write a file; None removes it, and what is no text is JSON, which changes the keys of one that is there."""
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    else:
        values = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(values | content if isinstance(content, dict) else content))


def files(**contents: object) -> Change:
    """Write files, whose names have `__` for a dot and `___` for a slash."""
    named = {name.replace("___", "/").replace("__", "."): content for name, content in contents.items()}
    return lambda folder: [written(folder, *item) for item in named.items()]


def config(**values: object) -> Change:
    return lambda folder: written(folder, CONFIG, values)


def tensors(change: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]) -> Change:
    def apply(folder: Path) -> None:
        changed = change(load_file(folder / WEIGHTS))
        save_file({name: np.ascontiguousarray(array) for name, array in changed.items()}, folder / WEIGHTS)

    return apply


def renamed(change: Callable[[str], str]) -> Change:
    return tensors(lambda own: {change(name): array for name, array in own.items()})


def beside(**added: np.ndarray) -> Change:
    return tensors(lambda own: own | {name.replace("__", "."): array for name, array in added.items()})


def without_head(folder: Path) -> None:
    tensors(lambda own: {name: array for name, array in own.items() if name != HEAD})(folder)


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def as_pickle(folder: Path) -> None:
    value, storages = state(load_file(folder / WEIGHTS))
    (folder / "pytorch_model.bin").write_bytes(archive(pickled(value), storages))
    (folder / WEIGHTS).unlink()


def below(*names: str) -> Change:
    """Move the folder into one of its own, and copies without weights beside it."""

    def apply(folder: Path) -> None:
        first, *others = (folder / name for name in names)
        own = list(folder.iterdir())
        first.mkdir()
        for path in own:
            shutil.move(path, first / path.name)
        for other in others:
            other.mkdir()
            shutil.copy(first / CONFIG, other / CONFIG)

    return apply


def tokens_elsewhere(file: str, make: Callable[[list[dict[str, Any]]], object]) -> Change:
    """Take the last added token out of tokenizer.json, and state it in another file."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        told = [token for token in content["added_tokens"] if token["content"] == "<|im_end|>"]
        content["added_tokens"] = [token for token in content["added_tokens"] if token not in told]
        written(folder, "tokenizer.json", json.dumps(content))
        written(folder, file, make(told))

    return apply


def adapter(**trained: np.ndarray) -> Change:
    """Write an adapter of one layer beside the base, in `adapter`, with whole tensors beside its update."""

    def apply(folder: Path) -> None:
        (folder / "adapter").mkdir()
        values = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
        written(folder, "adapter/adapter_config.json", values)
        update = {"lora_A": np.ones((2, 32), np.float32), "lora_B": np.zeros((32, 2), np.float32)}
        named = {f"base_model.model.{QUERY}.{part}.weight": array for part, array in update.items()}
        named |= {f"base_model.model.{name.replace('__', '.')}": array for name, array in trained.items()}
        save_file(named, folder / "adapter" / "adapter_model.safetensors")

    return apply


def plain_llama(folder: Path, case: Any = LLAMA) -> None:
    folder.mkdir()
    for name in ("tokenizer.json", TOKENIZER):
        shutil.copy(DEMO / name, folder / name)
    written(folder, CONFIG, case.hub_config)
    save_file(case.tensors(), folder / WEIGHTS)


def plain_bert(folder: Path) -> None:
    tiny.write_checkpoint(folder)


def plain_encoder(folder: Path, name: str = "xlm_roberta", tokens: str = "roberta") -> None:
    """Write an encoder with the tokenizer of one of transformers' classes."""
    case = next(case for case in ENCODER_CASES if case.name == name)
    with zipfile.ZipFile(ARCHIVE) as every:
        every.extractall(folder.parent, [entry for entry in every.namelist() if entry.startswith(f"{tokens}/")])
    shutil.move(folder.parent / tokens, folder)
    given = {"modules.json": tiny.MODULES, POOLING: {"pooling_mode_mean_tokens": True}}
    written(folder, "modules.json", json.dumps(tiny.MODULES))
    written(folder, POOLING, given[POOLING])
    values = {**case.hub_config, "vocab_size": 400, "max_position_embeddings": 66}
    written(folder, CONFIG, values)
    specs = any_encoder_weight_specs(read_encoder_config("m", values, given), FLOAT32)
    sources = {source.name: source.shape for spec in specs for source in spec.sources}
    save_file({name: tensor(name, shape) for name, shape in sources.items()}, folder / WEIGHTS)


def of(name: str, tokens: str) -> Change:
    return lambda folder: plain_encoder(folder, name, tokens)


@dataclass(frozen=True)
class Trait:
    """A folder with a trait, and the folder that it means."""

    row: str
    change: Change
    plain: Change = plain_llama
    like: Change | None = None  # the change of the plain folder that means the same; None for no change
    refused: str | None = None
    is_adapted: bool = False
    is_whole: bool = False  # whether `like` writes a whole folder


SCALES = np.ones(4, np.float32)
T, E = LLAMA.tensors(), TIED.tensors()[EMBED]


def old(prefix: str) -> Callable[[str], str]:
    return lambda name: prefix + name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")


def pooled(**keys: object) -> Change:
    return lambda folder: (folder / POOLING).write_text(json.dumps(keys))


def index(**weight_map: str) -> Change:
    return lambda folder: written(folder, INDEX, {"weight_map": weight_map})


def sharded(folder: Path) -> None:
    own = sorted(load_file(folder / WEIGHTS).items())
    for number in (1, 2):
        save_file(dict(own[number - 1 :: 2]), folder / f"model-{number:05}-of-00002.safetensors")
    (folder / WEIGHTS).unlink()
    index(**{name: f"./model-{place % 2 + 1:05}-of-00002.safetensors" for place, (name, _) in enumerate(own)})(folder)


def stated_end(told: list[dict[str, Any]]) -> dict[str, Any]:
    return {"added_tokens_decoder": {str(token["id"]): token for token in told}}


TRAITS = (
    Trait("tied-config-own-head", config(tie_word_embeddings=True)),
    Trait("tied-config-own-head", both(config(tie_word_embeddings=True), renamed(lambda name: f"module.{name}"))),
    Trait("tied-config-own-head", both(config(tie_word_embeddings=True), as_pickle)),
    Trait("pretraining-tp-2", config(pretraining_tp=2)),
    Trait("pretraining-tp-2", config(attention_dropout=0.1, use_cache=False, pruned_heads={}, unsloth_version="2026")),
    Trait("pretraining-tp-2", config(transformers_version="9", router_of_next_year={"a": [1]}, rope_scaling=None)),
    Trait("value-head-beside", beside(v_head__summary__weight=SCALES, v_head__summary__bias=SCALES)),
    Trait("value-head-beside", beside(score__weight=SCALES, model__layers__0__self_attn__rotary_emb__inv_freq=SCALES)),
    Trait("value-head-beside", beside(_orig_mod__reward_head__0__weight=SCALES)),
    Trait("compiled-prefix", renamed(lambda name: f"_orig_mod.{name}")),
    Trait("compiled-prefix", renamed(lambda name: f"module._orig_mod.{name}")),
    Trait("compiled-prefix", renamed(lambda name: f"_other_mod.{name}.x"), refused="all named '_other_mod.'"),
    Trait("stale-index-shards-gone", index(a="model-00001-of-00002.safetensors")),
    Trait("stale-index-shards-gone", sharded),
    Trait(
        "stale-index-shards-gone",
        both(sharded, index(a="model-00009-of-00009.safetensors")),
        refused="which is not there .* The folder has model-00001",
    ),
    Trait("added-tokens-in-config-only", tokens_elsewhere(TOKENIZER, stated_end)),
    Trait(
        "added-tokens-in-config-only",
        tokens_elsewhere("special_tokens_map.json", lambda told: {"eos_token": told[0]["content"]}),
        like=files(special_tokens_map__json={"eos_token": "<|im_end|>"}),
    ),
    Trait(
        "added-tokens-in-config-only",
        tokens_elsewhere(TOKENIZER, lambda told: {"extra_special_tokens": [told[0]["content"]]}),
    ),
    Trait(
        "roberta-vocab-and-merges",
        lambda folder: None,
        of("xlm_roberta", "roberta_bare_files"),
        of("xlm_roberta", "roberta"),
        is_whole=True,
    ),
    Trait(
        "roberta-vocab-and-merges",
        lambda folder: None,
        of("bert", "bert_bare_files"),
        of("bert", "bert"),
        is_whole=True,
    ),
    Trait(
        "roberta-vocab-and-merges",
        lambda folder: None,
        of("bert", "bert_cased_own_files"),
        of("bert", "bert_cased"),
        is_whole=True,
    ),
    Trait("bert-gamma-beta-mlm", both(renamed(old("bert.")), beside(cls__predictions__bias=SCALES)), plain_bert),
    Trait(
        "bert-gamma-beta-mlm",
        both(renamed(old("")), beside(cls__seq_relationship__weight=SCALES), as_pickle),
        plain_bert,
    ),
    Trait(
        "bert-gamma-beta-mlm",
        both(renamed(lambda name: f"roberta.{name}"), beside(lm_head__layer_norm__beta=SCALES)),
        plain_encoder,
    ),
    Trait(
        "xlm-roberta-length-file",
        files(**{"sentence_xlm-roberta_config__json": {"max_seq_length": 12}}),
        plain_bert,
        files(**{SENTENCE.replace(".", "__"): {"max_seq_length": 12}}),
    ),
    Trait(
        "xlm-roberta-length-file",
        files(sentence_bert_config__json={"processor_kwargs": {"model_max_length": 12}}),
        plain_bert,
        files(sentence_bert_config__json={"max_seq_length": 12}),
    ),
    Trait(
        "xlm-roberta-length-file",
        files(sentence_bert_config__json={"tokenizer_args": {"add_eos_token": True}}),
        plain_bert,
        refused="add_eos_token = True of the tokenizer",
    ),
    Trait(
        "pooling-weightedmean",
        pooled(pooling_mode_weightedmean_tokens=True),
        plain_bert,
        pooled(pooling_mode="weightedmean"),
    ),
    Trait(
        "pooling-weightedmean",
        pooled(pooling_mode_cls_token=True, pooling_mode_mean_sqrt_len_tokens=True),
        plain_bert,
        pooled(pooling_mode=["cls", "mean_sqrt_len_tokens"]),
    ),
    Trait(
        "pooling-weightedmean",
        pooled(pooling_mode_attention=True),
        plain_bert,
        refused="the pooling 'pooling_mode_attention' is not",
    ),
    Trait("bge-files-as-published", files(sentence_bert_config__json={"do_lower_case": True}), plain_bert),
    Trait(
        "bge-files-as-published",
        files(config_sentence_transformers__json={"__version__": {"pytorch": "1"}}),
        plain_bert,
    ),
    Trait(
        "bge-files-as-published",
        files(config_sentence_transformers__json={"truncate_dim": 0}),
        plain_bert,
        refused="truncate_dim is 0",
    ),
    Trait("qwen2-not-causal", config(is_causal=False), of("qwen3", "qwen2"), config(architectures=["Qwen3BiModel"])),
    Trait("qwen2-not-causal", config(use_bidirectional_attention=True), of("llama", "llama")),
    Trait(
        "qwen2-not-causal",
        config(is_causal=False),
        lambda folder: plain_llama(folder, PHI3),
        refused="is_causal = False is not served of phi3",
    ),
    Trait(
        "adapter-auto-saved-embeddings",
        adapter(model__embed_tokens__weight=T[EMBED], lm_head__weight=T[HEAD]),
        is_adapted=True,
    ),
    Trait(
        "adapter-auto-saved-embeddings",
        adapter(model__embed_tokens__weight=E, lm_head__weight=E),
        lambda folder: plain_llama(folder, TIED),
        is_adapted=True,
    ),
    Trait(
        "adapter-auto-saved-embeddings",
        adapter(model__embed_tokens__weight=E, lm_head__weight=-E),
        lambda folder: plain_llama(folder, TIED),
        refused="differs from the embedding",
        is_adapted=True,
    ),
    Trait("folder-of-hf-exports", below("step-100", "step-200")),
    Trait("folder-of-hf-exports", below("checkpoint-100")),
    Trait("folder-of-hf-exports", below("a", "b"), refused="There are weights below it, in 'a': set MODEL_URI"),
)


@dataclass(frozen=True)
class Loaded:
    """What a start has of a folder before it compiles."""

    config: object
    weights: Mapping[str, np.ndarray]
    sentence: tuple[int, Mapping[str, str]] | None  # the most tokens of a text, and the prompts
    text: TextFiles


def settings_of(folder: Path, *, is_adapted: bool = False) -> Settings:
    adapter_uri = str(folder / "adapter") if is_adapted else None
    cache = folder.parent / "cache"
    return Settings(model_uri=str(folder), adapter_uri=adapter_uri, dtype="float32", local_model_cache=cache)


def load(settings: Settings) -> Loaded:
    context = StartContext(settings, Metrics(), StartProgress(Metrics()))
    located = locate_checkpoint(context)
    weights = load_on_host(located, weight_specs(settings, located), LoadLimits(None, Progress(), 1 << 20)).weights
    text = load_text(context, located, pull_tokenizer_files(context, located))
    values, sentence = located.hub_config, located.sentence_files
    if not is_encoder(values, sentence):
        return Loaded(read_config("m", values), weights, None, text)
    model = read_encoder_config("m", values, sentence, located.weight_files)
    read = read_sentence_config("m", sentence)
    return Loaded(model, weights, (min(read.max_tokens or model.context_len, model.context_len), read.prompts), text)


def assert_same(found: Loaded, expected: Loaded) -> None:
    assert found.config == expected.config
    assert found.sentence == expected.sentence
    assert found.weights.keys() == expected.weights.keys()
    for name, array in found.weights.items():
        np.testing.assert_array_equal(array, expected.weights[name], err_msg=name)
    ours, theirs = found.text.tokenizer, expected.text.tokenizer
    assert ours.eos_ids == theirs.eos_ids
    for text in TEXTS:
        ids = [tokenizer.backend.encode(text).ids for tokenizer in (ours, theirs)]
        assert ids[0] == ids[1], text


PLAIN: dict[tuple[Change, Change | None], Loaded] = {}  # what was loaded already


def expected_of(trait: Trait, folder: Path) -> Loaded:
    key = trait.plain, trait.like
    if key not in PLAIN:
        folder.parent.mkdir()
        if not trait.is_whole:
            trait.plain(folder)
        if trait.like is not None:
            trait.like(folder)
        PLAIN[key] = load(settings_of(folder))
    return PLAIN[key]


@pytest.mark.parametrize("trait", [pytest.param(trait, id=f"{trait.row}-{n}") for n, trait in enumerate(TRAITS)])
def test_a_start_and_check_serve_a_trait_as_what_it_means_or_refuse_it_alike(trait: Trait, tmp_path: Path):
    folder = tmp_path / "trait" / "m"
    folder.parent.mkdir()
    trait.plain(folder)
    trait.change(folder)
    settings = settings_of(folder, is_adapted=trait.is_adapted)
    if trait.refused is not None:
        with pytest.raises(StartError, match=trait.refused) as caught:
            load(settings)
        assert "\n" not in str(caught.value)
        assert check(str(folder), settings) == 1
        return
    found = load(settings)
    assert check(str(folder), settings) == 0
    assert_same(found, expected_of(trait, tmp_path / "plain" / "m"))


@pytest.mark.parametrize("place", [CONFIG, "generation_config.json", TOKENIZER])
def test_the_end_is_that_of_the_file_that_states_it(place: str, tmp_path: Path):
    """Row bucket-eos-in-config-only; from a bucket see tests/start/test_same_text.py."""
    plain_llama(tmp_path / "m")
    for name in (CONFIG, TOKENIZER):
        values = json.loads((tmp_path / "m" / name).read_text())
        values.pop("eos_token_id", None)
        values.pop("eos_token", None)
        (tmp_path / "m" / name).write_text(json.dumps(values))
    stated = {"eos_token": "<|im_end|>"} if place == TOKENIZER else {"eos_token_id": [3, 7]}
    written(tmp_path / "m", place, stated)
    tokenizer = load(settings_of(tmp_path / "m")).text.tokenizer
    expected = {tokenizer.backend.token_to_id("<|im_end|>")} if place == TOKENIZER else {3, 7}
    assert tokenizer.eos_ids == expected


def test_a_text_with_a_token_that_has_no_row_is_refused_and_the_start_is_not(tmp_path: Path):
    """Row text-token-beyond-embedding, whose siblings are in tests/text/test_ids_beyond.py."""
    plain_llama(tmp_path / "m")
    assert check(str(tmp_path / "m"), settings_of(tmp_path / "m")) == 0
    tokenizer = load(settings_of(tmp_path / "m")).text.tokenizer
    assert tokenizer.vocab_size > LLAMA.hub_config["vocab_size"]
    with pytest.raises(InvalidParameter):
        tokenizer.encode(TEXTS[0], add_special_tokens=True)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SHOWS = "{{ tools | tojson }}"


@pytest.mark.parametrize(
    "change",
    [
        files(
            tokenizer_config__json={
                "chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": SHOWS}]
            }
        ),
        files(additional_chat_templates___tool_use__jinja=SHOWS, chat_template__jinja="x"),
        files(chat_template__json={"chat_template": {"default": "x", "tool_use": SHOWS}}),
    ],
)
def test_a_named_template_shows_a_tool_as_it_was_sent(change: Change, tmp_path: Path):
    """Rows template-named-tool-use and template-tool-as-it-was-sent: the keys in the order of the client."""
    plain_llama(tmp_path / "m")
    change(tmp_path / "m")
    template = load(settings_of(tmp_path / "m")).text.chat_template
    assert template is not None
    turned = {"function": dict(reversed(TOOL["function"].items())), "type": "function"}
    for tool in (TOOL, turned):
        assert template.chosen(has_tools=True, has_documents=False).render([], [tool]) == json.dumps([tool])
