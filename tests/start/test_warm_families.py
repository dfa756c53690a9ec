"""A model of every family answers a file in int8, and its second start compiles nothing."""

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
from service.models.registry import FAMILIES, read_config
from tests.parity.cases import CASES, Case
from tests.parity.family_cases import FAMILY_CASES, MXFP4_CASE, draw
from tests.served import DEMO

# The last case of each family.
CASE_OF = {case.model_type: case for case in (*CASES, *FAMILY_CASES, MXFP4_CASE)}
SMALL = {"MAX_NUM_SEQS": 1, "MAX_MODEL_LEN": 32, "MAX_PREFILL_TOKENS": 16}


def saved(folder: Path, case: Case) -> None:
    """Write a checkpoint of a family, with the demo model's tokenizer."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    vocab_size = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    config = {**case.hub_config, "vocab_size": vocab_size, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    specs = decoder_weight_specs(read_config("m", config))
    stored = {tensor.name: tensor.shape for spec in specs for source in spec.sources for tensor in source.stored}
    save_file(
        {name: draw(case.model_type, name, shape) for name, shape in stored.items()}, folder / "model.safetensors"
    )


def run_batch(tmp_path: Path, output: str) -> tuple[dict[str, Any], list[str]]:
    """Answer a file in a process of its own; return the log record of the start, and the texts."""
    body = {"model": "m", "prompt": "The river", "max_tokens": 6, "temperature": 0}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    settings = {"MODEL_URI": tmp_path / "model", "MODEL_NAME": "m", "LOCAL_MODEL_CACHE": tmp_path / "cache", **SMALL}
    settings |= {"QUANTIZATION": "int8", "LOG_FORMAT": "json"}
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
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() & CASE_OF.keys()))
def test_a_second_start_loads_all_steps_from_the_bundle(tmp_path: Path, model_type: str):
    saved(tmp_path / "model", CASE_OF[model_type])
    first, texts = run_batch(tmp_path, "first.jsonl")
    second, same = run_batch(tmp_path, "second.jsonl")
    assert (first["bundle_outcome"], second["bundle_outcome"]) == ("miss", "hit")
    assert (second["compiles"], same) == (0, texts)
