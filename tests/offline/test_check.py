"""`levserve check` says what a start would do, from small files and headers, and reads no weight."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.cli import build_parser
from service.offline.check import check
from service.settings import Settings
from tests.encoder import tiny
from tests.served import DEMO
from tests.sighted import save_gemma, save_gemma4, save_mistral, save_qwen35


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the printed table; of several rows of a kind, their texts together."""
    found: dict[str, str] = {}
    for line in capsys.readouterr().out.splitlines():
        what, _, told = line.partition("  ")
        found[what] = f"{found.get(what, '')} {told.strip()}".strip()
    return found


def test_a_model_that_is_served_has_a_row_for_each_of_its_parts(capsys: pytest.CaptureFixture[str]):
    assert check(str(DEMO), Settings()) == 0
    table = rows(capsys)
    assert table["model"] == "llama, a model that generates"
    assert table["tensors"] == "38: 38 BF16"
    assert table["tokenizer"].startswith("3,072 tokens, with a chat template; ids that end a text: ")
    assert table["result"] == "served"


@pytest.mark.parametrize(
    ("save", "told"),
    [
        (save_gemma, "of 9 tokens, or tiles of as many"),
        (save_gemma4, "of up to 24 tokens"),
        (save_mistral, "of up to 256 tokens"),
        (save_qwen35, "of up to 256 tokens"),
    ],
)
def test_images_are_told_and_a_folder_that_does_not_say_how_to_scale_them_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save, told: str
):
    save(tmp_path / "model")
    assert check(str(tmp_path / "model"), Settings()) == 0
    assert rows(capsys)["images"] == told
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    assert check(str(tmp_path / "model"), Settings()) == 1
    assert "preprocessor_config.json: is missing; it says how" in rows(capsys)["refused"]


def test_a_token_that_ends_lines_of_images_and_that_the_tokenizer_lacks_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    save_mistral(tmp_path / "model")
    (tmp_path / "model" / "processor_config.json").write_text(json.dumps({"image_break_token": "[NOPE]"}))
    assert check(str(tmp_path / "model"), Settings()) == 1
    assert "has no token [NOPE], which stands for images" in rows(capsys)["refused"]


def test_an_encoder_s_vectors_and_prompts_are_told_and_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files = {
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}},
        "sentence_bert_config.json": {"max_seq_length": 24},
    }
    tiny.write_checkpoint(tmp_path, files=files)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"embeddings.position_ids": np.zeros((1, 64), np.int64)}, tmp_path / "model.safetensors")
    assert check(str(tmp_path), Settings()) == 0
    table = rows(capsys)
    assert table["model"] == "bert, an embedding model"
    assert table["vectors"] == "32 dimensions, of length 1, by mean; texts of up to 24 tokens"
    assert table["prompts"] == "query; by default none"
    assert "embeddings.position_ids" in table["left out"]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no"),
        (lambda folder: change(folder, hidden_act="mish"), "hidden_act = 'mish'"),
        (lambda folder: change(folder, intermediate_size=65), "config.json makes it"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json"),
    ],
)
def test_what_a_start_would_refuse_is_told_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil, told: str
):
    tiny.write_checkpoint(tmp_path)
    spoil(tmp_path)
    assert check(str(tmp_path), Settings()) == 1
    table = rows(capsys)
    assert told in table["refused"]
    assert table["result"] == "refused"


def test_the_reason_of_a_refusal_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes | {"rms_norm_eps": 1e-5, "hidden_act": "silu"}))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert check(str(tmp_path), Settings()) == 1
    assert capsys.readouterr().out.count("claims a header") == 1


@pytest.mark.parametrize("added", [0, 1])
def test_copies_that_differ_are_refused_as_by_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], added: int):
    tiny.write_checkpoint(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    copies = {f"_orig_mod.{name}": tensor + added for name, tensor in tensors.items()}
    save_file(tensors | copies, tmp_path / "model.safetensors")
    assert check(str(tmp_path), Settings()) == added
    table = rows(capsys)
    assert ("and they differ" in table["refused"]) if added else ("copies, of which" in table["left out"])


def test_nothing_of_a_weight_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tiny.write_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:header] + b"\xff" * (len(data) - header))  # every number is NaN
    assert check(str(tmp_path), Settings()) == 0
    assert rows(capsys)["result"] == "served"


def test_a_place_without_a_checkpoint_is_told_and_the_command_is_parsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert check(str(tmp_path / "none"), Settings()) == 1
    assert "no such folder" in rows(capsys)["refused"]
    assert build_parser().parse_args(["check", "gs://a/b"]).source == "gs://a/b"


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
