"""Tensors beside the updates of an adapter: trained ones are merged, copies of the base's are left out of a slot."""

import logging
from pathlib import Path

import numpy as np
import pytest

from service.checkpoint.adapters.locate import PICKLED, WEIGHTS, locate_adapter
from service.checkpoint.adapters.peft import CONFIG
from service.checkpoint.discover import locate
from service.checkpoint.load import load_on_host
from service.errors import RefusedAdapter
from service.storage.local import LocalSource
from tests.checkpoint.adapters.test_read import LIMITS, RANK, UPDATES, base, read, written
from tests.checkpoint.streamed import SPECS, TENSORS

__all__ = ["base"]  # a fixture

EMBED, HEAD = "base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"
OWN = TENSORS["model.embed_tokens.weight"]
COPIES = {EMBED: OWN, HEAD: OWN}
OTHER = (OWN.astype(np.float32) * 2).astype(np.float32)


def merged(base: Path, adapter: Path) -> dict[str, np.ndarray]:
    return load_on_host(locate(str(base), LocalSource, adapter_uri=str(adapter)), SPECS, LIMITS).weights


def test_copies_of_the_base_change_nothing_in_a_merge(base: Path, tmp_path: Path):
    with_copies, plain = merged(base, written(tmp_path / "a", UPDATES | COPIES)), merged(base, written(tmp_path / "b"))
    assert all(np.array_equal(with_copies[name], plain[name]) for name in plain)


def test_copies_of_the_base_are_left_out_of_a_slot_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    adapter = written(tmp_path / "a", UPDATES | COPIES)
    assert read(adapter, max_rank=RANK).keys() == read(written(tmp_path / "b")).keys()
    [record] = [record for record in caplog.records if hasattr(record, "left_out_copies")]
    assert set(record.left_out_copies) == {EMBED, HEAD}


@pytest.mark.parametrize("name", [EMBED, HEAD])
def test_a_tensor_that_differs_from_the_base_is_refused_for_a_slot_by_name(tmp_path: Path, name: str):
    adapter = written(tmp_path / "a", UPDATES | COPIES | {name: OTHER})
    with pytest.raises(RefusedAdapter, match=r"differs from the base's.*set ADAPTER_URI") as caught:
        read(adapter, max_rank=RANK)
    assert (caught.value.file, caught.value.field) == (WEIGHTS, name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1]),
        ("lora_bias", True),
        ("bias", "all"),
        ("bias", "lora_only"),
    ],
)
def test_what_changes_more_than_linear_layers_is_refused_for_a_slot_by_field(tmp_path: Path, field: str, value: object):
    with pytest.raises(RefusedAdapter, match="no place in a slot") as caught:
        read(written(tmp_path / "a", **{field: value}), max_rank=RANK)
    assert (caught.value.file, caught.value.field) == (CONFIG, field)


def test_an_embedding_that_is_the_head_too_is_replaced_only_where_it_was_trained_as_both(base: Path, tmp_path: Path):
    alone = written(tmp_path / "a", UPDATES | {EMBED: OTHER}, modules_to_save=["embed_tokens"])
    with pytest.raises(RefusedAdapter, match="one tensor of the base"):
        merged(base, alone)
    unequal = written(tmp_path / "b", UPDATES | {EMBED: OTHER, HEAD: OWN})
    with pytest.raises(RefusedAdapter, match="differs from the embedding"):
        merged(base, unequal)
    tied = written(tmp_path / "c", UPDATES | {EMBED: OTHER}, modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    np.testing.assert_array_equal(merged(base, tied)["embed"], OTHER)
    both = written(tmp_path / "d", UPDATES | {EMBED: OTHER, HEAD: OTHER})
    np.testing.assert_array_equal(merged(base, both)["embed"], OTHER)


def test_trained_tokens_take_the_place_of_their_rows(base: Path, tmp_path: Path):
    rows = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
    name = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    expected = OWN.astype(np.float32)
    expected[[9, 2, 299]] = rows
    for indices in ([9, 2, 299], {"embed_tokens": [9, 2, 299]}):
        adapter = written(tmp_path / "a", UPDATES | {name: rows}, trainable_token_indices=indices)
        np.testing.assert_array_equal(merged(base, adapter)["embed"], expected)
    outside = written(tmp_path / "b", UPDATES | {name: rows}, trainable_token_indices=[9, 2, 300])
    with pytest.raises(RefusedAdapter, match="names no or equal tokens"):
        merged(base, outside)


def test_a_vocabulary_of_another_size_is_refused_with_both_sizes(base: Path, tmp_path: Path):
    longer = np.concatenate([OWN, OWN[:2]])
    with pytest.raises(RefusedAdapter, match=r"has shape \[302, 64\].* makes it \[300, 64\]"):
        merged(base, written(tmp_path / "a", UPDATES | {EMBED: longer, HEAD: longer}))


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: f"module.{name}",
        lambda name: name.replace("base_model.model.", "base_model.model._orig_mod."),
        lambda name: f"_orig_mod.{name}",
        lambda name: name.removeprefix("base_model.model."),
        lambda name: name.replace("model.model.", "model."),
    ],
)
def test_names_as_other_programs_save_them_are_those_of_peft(base: Path, tmp_path: Path, rename):
    renamed = {rename(name): tensor for name, tensor in UPDATES.items()}
    assert renamed.keys() != UPDATES.keys()
    found, plain = merged(base, written(tmp_path / "a", renamed)), merged(base, written(tmp_path / "b"))
    assert all(np.array_equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize("middle", ["base_layer", "modules_to_save", "modules_to_save.default"])
def test_whole_tensors_have_the_names_of_what_wraps_them(base: Path, tmp_path: Path, middle: str):
    copies = {name.replace(".weight", f".{middle}.weight"): tensor for name, tensor in COPIES.items()}
    found, plain = merged(base, written(tmp_path / "a", UPDATES | copies)), merged(base, written(tmp_path / "b"))
    assert all(np.array_equal(found[name], plain[name]) for name in plain)


def test_tensors_of_two_adapters_are_refused_with_both_names(tmp_path: Path):
    names = list(UPDATES)
    mixed = {
        name.replace(".weight", f".{'one' if name in names[:2] else 'two'}.weight"): UPDATES[name] for name in names
    }
    with pytest.raises(RefusedAdapter, match="several adapters: one, two"):
        read(written(tmp_path / "a", mixed))


def test_a_pickled_file_is_found_where_there_is_no_other(tmp_path: Path):
    adapter = written(tmp_path / "a")
    (adapter / PICKLED).write_bytes(b"")
    assert locate_adapter(str(adapter), LocalSource).weights.name == WEIGHTS
    (adapter / WEIGHTS).unlink()
    assert locate_adapter(str(adapter), LocalSource).weights.name == PICKLED
