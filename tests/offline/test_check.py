"""`levserve check` prints what a start would do with a checkpoint, and reads no weight."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.offline.check import check
from service.settings import Settings
from tests.gcs import GcsBucket
from tests.served import DEMO


def checked(uri: object, tmp_path: Path, **settings: object) -> tuple[int, dict[str, str]]:
    out = io.StringIO()
    code = check(str(uri), Settings(**{"local_model_cache": tmp_path / "cache", **settings}), out)  # pyright: ignore
    lines = [line.split(maxsplit=1) for line in out.getvalue().splitlines()]
    return code, {name: text.strip() for name, text in lines}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    shutil.copytree(DEMO, tmp_path / "m")
    return tmp_path / "m"


def test_the_demo_model_would_be_served(tmp_path: Path):
    code, rows = checked(DEMO, tmp_path)
    assert (code, rows["model"], rows["result"]) == (0, "llama", "served")
    assert "model.safetensors" in rows["files"]
    assert "BF16" in rows["tensors"]
    assert "a chat template" in rows["tokenizer"]


def test_what_is_left_out_and_the_head_are_told(snapshot: Path, tmp_path: Path):
    tensors = load_file(snapshot / "model.safetensors")
    tensors |= {
        "v_head.summary.weight": np.zeros(2, np.float32),
        "lm_head.weight": tensors["model.embed_tokens.weight"] * 2,
    }
    save_file({f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, snapshot / "model.safetensors")
    code, rows = checked(snapshot, tmp_path)
    assert code == 0
    assert rows["head"] == "its own"
    assert rows["left"].endswith("value heads: _orig_mod.v_head.summary.weight")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1"),
            "LFS",
        ),
        (lambda folder: (folder / "model.safetensors").rename(folder / "model.gguf"), "GGUF"),
        (lambda folder: (folder / "config.json").write_text(json.dumps({"model_type": "mamba"})), "recurrent"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "TOKENIZER_URI"),
    ],
)
def test_what_would_be_refused_is_told_with_the_reason_of_a_start(snapshot: Path, tmp_path: Path, change, reason: str):
    change(snapshot)
    code, rows = checked(snapshot, tmp_path)
    assert (code, rows["result"]) == (1, "not served")
    assert reason in rows["refused"]


def test_of_a_bucket_no_weight_is_read(gcs_bucket: GcsBucket, tmp_path: Path):
    gcs_bucket.upload_directory(DEMO, "m")
    gcs_bucket.faults([])
    code, rows = checked(gcs_bucket.uri("m"), tmp_path, storage_emulator_host=gcs_bucket.endpoint)
    assert (code, rows["model"]) == (0, "llama")
    ranges = [line.rpartition("bytes=")[2] for line in gcs_bucket.requests(r"safetensors\?alt=media")]
    assert {int(each.split("-")[0]) for each in ranges} == {0}
