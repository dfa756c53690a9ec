"""A model with experts starts from its bundle: the second start compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from tests.parity.family_cases import FAMILY_CASES, draw
from tests.served import DEMO

CASE = next(case for case in FAMILY_CASES if case.name == "qwen3_moe_some")


def saved(folder: Path) -> Path:
    """Write a checkpoint with experts and the demo model's tokenizer."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    vocab_size = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    config = {**CASE.hub_config, "vocab_size": vocab_size, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    sources = [source for spec in decoder_weight_specs(read_config("m", config)) for source in spec.sources]
    tensors = {source.name: draw("qwen3_moe", source.name, source.shape) for source in sources}
    save_file(tensors, folder / "model.safetensors")
    return folder


def run_batch(tmp_path: Path, output: str) -> tuple[dict[str, Any], list[str]]:
    """Answer a file in a process of its own; return the log record of the start, and the texts."""
    body = {"model": "moe", "prompt": "The river", "max_tokens": 6, "temperature": 0}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    settings = {"MODEL_URI": tmp_path / "model", "MODEL_NAME": "moe", "LOCAL_MODEL_CACHE": tmp_path / "cache"}
    settings |= {"QUANTIZATION": "int8", "MAX_NUM_SEQS": 2, "LOG_FORMAT": "json"}
    done = subprocess.run(
        [sys.executable, "-m", "service", "batch", str(tmp_path / "in.jsonl"), str(tmp_path / output)],
        env=os.environ | {name: str(value) for name, value in settings.items()},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    answers = [json.loads(line) for line in (tmp_path / output).read_text().splitlines()]
    return next(record for record in records if record["message"] == "ready"), [
        answer["response"]["body"]["choices"][0]["text"] for answer in answers
    ]


@pytest.mark.slow
def test_a_second_start_loads_the_steps_of_experts_from_the_bundle(tmp_path):
    saved(tmp_path / "model")
    first, texts = run_batch(tmp_path, "first.jsonl")
    second, same = run_batch(tmp_path, "second.jsonl")
    assert (first["bundle_outcome"], second["bundle_outcome"]) == ("miss", "hit")
    assert (second["compiles"], same) == (0, texts)
