"""`levserve compare` measures what two ways to serve a checkpoint differ in."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.errors import SettingsError
from service.offline.compare import compare, parse_variant
from service.offline.difference import Difference
from service.offline.scoring import Scorer
from service.settings import Settings


def test_the_figures_of_two_known_distributions():
    first = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], np.float32))
    second = np.log(np.array([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]], np.float32))
    difference = Difference()
    for row, target in ((0, 0), (1, 1)):
        difference.add(first[row : row + 1], second[row : row + 1], [target])
    difference.add(first[:0], second[:0], [])
    figures = difference.metrics()
    assert figures["tokens"] == 2
    assert figures["first_perplexity"] == pytest.approx(1 / math.sqrt(0.5 * 0.1), rel=1e-5)
    assert figures["perplexity_ratio"] == pytest.approx(math.sqrt(2), rel=1e-5)
    assert figures["largest_kl"] == pytest.approx(0.25 * math.log(2), rel=1e-5)
    assert figures["mean_kl"] == pytest.approx(figures["largest_kl"] / 2, rel=1e-5)
    assert figures["same_greedy_tokens"] == 0.5
    assert figures["largest_logit_difference"] == pytest.approx(math.log(2), rel=1e-5)


def test_a_way_is_settings_on_top_of_the_others():
    assert parse_variant("") == {}
    assert parse_variant("QUANTIZATION=int8 MODEL_URI='/a b'") == {"quantization": "int8", "model_uri": "/a b"}
    with pytest.raises(SettingsError, match=r"'int8' is not a setting with a value, such as QUANTIZATION=int8"):
        parse_variant("int8")


def test_a_wrong_setting_and_a_text_that_cannot_be_read_are_refused_before_a_model_is_loaded(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"--text: .* cannot be read as UTF-8"):
        compare(("", ""), tmp_path / "none.txt", {}, None)
    text = tmp_path / "text.txt"
    text.write_text("text")
    with pytest.raises(SettingsError, match=r"^QUANTIZATION: .*'int7'"):
        compare(("", "QUANTIZATION=int7"), text, {}, None)


def run_compare(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "service", "compare", *arguments]
    return subprocess.run(
        command, env=os.environ | {"MODEL_STREAM": "true"}, capture_output=True, text=True, check=False
    )


def test_log_lines_are_no_part_of_what_is_printed(tmp_path: Path):
    done = run_compare("", "QUANTIZATION=int7", "--text", str(tmp_path / "none.txt"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be read as UTF-8" in done.stderr


@pytest.mark.slow
def test_the_command_prints_the_figures_as_one_line_of_json(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("What is the capital of France?")
    done = run_compare("", "", "--text", str(text))
    figures = json.loads(done.stdout)
    assert (done.returncode, figures["perplexity_ratio"], figures["largest_logit_difference"]) == (0, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "bound", "largest_kl", "same"),
    [
        ("QUANTIZATION=int8", 1.01, 0.01, 0.95),
        ("QUANTIZATION=fp8", 1.02, 0.01, 0.95),
        ("QUANTIZATION=int4", 1.05, 0.08, 0.93),
        ("KV_DTYPE=int8", 1.01, 0.01, 0.95),
        ("KV_DTYPE=fp8", 1.02, 0.01, 0.95),
        ("DTYPE=auto", 1.001, 0.001, 0.98),
    ],
)
def test_fewer_bits_keep_the_demo_models_quality(
    way: str, bound: float, largest_kl: float, same: float, tmp_path: Path, demo_answers, capsys
):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{pair['question']}\n{pair['answer']}" for pair in demo_answers))
    assert compare(("DTYPE=float32", way), text, {"model_stream": True}, None) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["tokens"] > 400
    assert figures["perplexity_ratio"] < bound
    assert figures["same_greedy_tokens"] > same
    assert figures["mean_kl"] < largest_kl


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_scorer_predicts_the_pinned_answers(quantization: str, demo_answers):
    scorer = Scorer.of(Settings(model_stream=True, quantization=quantization))
    pair = max(demo_answers, key=lambda pair: len(pair["answer"]))
    asked = f"<|im_start|>user\n{pair['question']}<|im_end|>\n<|im_start|>assistant\n"
    prompt, answer = (scorer.tokenizer.encode(part, add_special_tokens=False) for part in (asked, pair["answer"]))
    predicted = np.concatenate([logits.argmax(axis=-1) for logits in scorer.logits([*prompt, *answer])])
    assert predicted[len(prompt) - 1 : -1].tolist() == answer
