"""lm-eval, unmodified, against the demo process: its figures are those of a direct computation."""

import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import tokenizers

from tests.contract.installation import ROOT, python_of
from tests.levanter_run import build_model, implicit_promotion
from tests.served import DEMO, demo_tensors

LENGTH = 64  # positions of the direct computation, more than the longest text has
ENDS = {1, 3}
STOP = "."
SAME_LOGLIKELIHOOD_ATOL = 1e-3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def samples(demo_service, tmp_path_factory):
    """What lm-eval asked and got, by task."""
    python_of(ROOT / "examples" / "evaluate" / "harness.py")
    folder = tmp_path_factory.mktemp("evaluation")
    command = [sys.executable, "-m", "examples.evaluate.run", "--url", demo_service.url, "--output", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("|Stderr|") == 2
    lines = {path.name: path.read_text().splitlines() for path in folder.rglob("samples_*.jsonl")}
    return {name.rpartition("_")[0]: [json.loads(line) for line in found] for name, found in lines.items()}


class Direct:
    """The demo model as Levanter computes it."""

    def __init__(self):
        import haliax as hax
        import jax
        from levanter.layers.attention import AttentionMask

        config = json.loads((DEMO / "config.json").read_text())
        tensors = {name: tensor.astype(np.float32) for name, tensor in demo_tensors().items()}
        model = build_model(config, tensors)
        forward = hax.named_jit(lambda model, ids: hax.nn.log_softmax(model(ids, AttentionMask.causal()), "vocab"))
        self.tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))

        @cache
        def logprobs(token_ids: tuple[int, ...]):
            padded = jax.numpy.asarray(np.pad(np.asarray(token_ids, np.int32), (0, LENGTH - len(token_ids))))
            with implicit_promotion():
                found = forward(model, hax.named(padded, "position"))
            return np.asarray(found.rearrange(("position", "vocab")).array)[: len(token_ids)]

        self.logprobs = logprobs

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def score(self, context: str, continuation: str) -> tuple[float, bool]:
        """Return a continuation's log-likelihood, and whether each of its tokens is the likeliest."""
        token_ids, begin = self.encode(context + continuation), len(self.encode(context))
        before = self.logprobs(token_ids)[begin - 1 : -1]
        own = [row[token_id] for row, token_id in zip(before, token_ids[begin:], strict=True)]
        return float(np.sum(own)), bool(np.all(before.argmax(-1) == token_ids[begin:]))

    def answer(self, prompt: str) -> str:
        """Return the likeliest text up to the stop string."""
        token_ids, written = self.encode(prompt), ()
        while STOP not in (text := self.tokenizer.decode(written)):
            likeliest = int(self.logprobs(token_ids + written)[-1].argmax())
            if likeliest in ENDS:
                return text
            written += (likeliest,)
        return text.partition(STOP)[0]


@pytest.fixture(scope="module")
def direct():
    return Direct()


def test_log_likelihoods_and_greedy_flags_are_those_of_a_direct_computation(samples, direct):
    greedy = []
    for sample in samples["samples_demo_choices"]:
        for arguments, [[loglikelihood, is_greedy]] in zip(sample["arguments"].values(), sample["resps"], strict=True):
            expected, is_expected = direct.score(arguments["arg_0"], arguments["arg_1"])
            assert float(loglikelihood) == pytest.approx(expected, abs=SAME_LOGLIKELIHOOD_ATOL)
            assert is_greedy == str(is_expected)
            greedy.append(is_expected)
    assert len(greedy) == 64
    assert 12 <= sum(greedy) < 64


def test_generation_ends_exactly_at_the_stop_string(samples, direct):
    prompts = {}
    for sample in samples["samples_demo_completions"]:
        [arguments] = sample["arguments"].values()
        prompts[sample["doc_id"]] = arguments["arg_0"]
        assert sample["resps"] == [[direct.answer(arguments["arg_0"])]]
    # The service renders the chats into the same prompts.
    for sample in samples["samples_demo_chat"]:
        assert sample["resps"] == [[direct.answer(prompts[sample["doc_id"]])]]
    assert len(prompts) == len(samples["samples_demo_chat"]) == 16
