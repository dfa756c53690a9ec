"""Each family as releases of transformers and PEFT write it, in every way that people save, gives its tokens here.

`make test-all` installs the releases into `.tools/targets`; one that is missing is skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import MalformedCheckpoint
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.parity.matrix_cases import CASES, of_age
from tests.parity.test_newest_transformers import PYTHON
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL

SCRIPT = Path(__file__).with_name("matrix_process.py")
TARGETS = Path(__file__).parents[2] / ".tools" / "targets"
NEWEST = "newest"
RELEASES = {
    NEWEST: PYTHON,
    "4.57": Path(os.environ.get("TRANSFORMERS_4_57") or TARGETS / "transformers-4.57" / "bin" / "python"),
    "4.40": Path(os.environ.get("TRANSFORMERS_4_40") or TARGETS / "transformers-4.40" / "bin" / "python"),
}
NUM_PROMPT = 24  # tokens; those after them are the model's own
# What transformers says of a family that is younger than it.
UNKNOWN = ("does not recognize this architecture", "Unrecognized configuration class", "no model of", "with two fields")
type Loaded = tuple[DecoderConfig, dict[str, np.ndarray]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.xdist_group("matrix")]


@pytest.fixture(scope="module", params=RELEASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = RELEASES[request.param]
    if not python.exists():
        pytest.skip(f"no transformers {request.param} with torch in {python}; make test-all installs it")
    folder = tmp_path_factory.mktemp("matrix")
    cases = {name: of_age(values, request.param) for name, values in CASES.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [str(python), str(SCRIPT), str(folder / "cases.json"), str(folder / request.param)]
    subprocess.run(command, check=True, capture_output=True, timeout=3000)
    return folder / request.param


def load(folder: Path) -> Loaded:
    located = locate(str(folder), LocalSource, tokenizer_uri=str(DEMO))
    config = read_config(str(folder), located.hub_config)
    return config, load_on_host(located, decoder_weight_specs(config), LoadLimits(None, Progress(), 1 << 20)).weights


def check_tokens(loaded: Loaded, reference: Path) -> None:
    """Compare the logits of a prompt and of what follows, and the tokens that follow."""
    config, weights = loaded
    token_ids = np.load(reference / "token_ids.npy")
    logits = logits_by_chunk(Decoder(config, kernel=PagedReference()), weights, token_ids, len(token_ids))
    expected = np.load(reference / "logits.npy")
    np.testing.assert_allclose(logits, expected[:, : logits.shape[1]], atol=SAME_MODEL_ATOL, rtol=0)
    followers = logits[NUM_PROMPT - 1 : -1, : int(token_ids.max()) + 1].argmax(-1)
    np.testing.assert_array_equal(followers, token_ids[NUM_PROMPT:])


def check_same(loaded: Loaded, plain: Loaded) -> None:
    assert loaded[0] == plain[0]
    assert loaded[1].keys() == plain[1].keys()
    for name, weight in loaded[1].items():
        np.testing.assert_array_equal(weight, plain[1][name], err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_every_way_of_saving_gives_the_tokens(name: str, made: Path):
    folder = made / name
    error = (folder / "error.txt").read_text() if (folder / "error.txt").exists() else ""
    if made.name != NEWEST and any(reason in error for reason in UNKNOWN):
        pytest.skip("the release does not have the family")
    assert not error, error
    plain = load(folder / "single")
    check_tokens(plain, folder / "plain")
    wrong = {}
    for way in sorted(path.name for path in folder.iterdir() if path.name not in ("plain", "merged", "single")):
        try:
            check_way(way, folder, plain)
        except (AssertionError, MalformedCheckpoint) as failure:
            wrong[way] = str(failure)[:500]
    assert not wrong


def check_way(way: str, folder: Path, plain: Loaded) -> None:
    assert not (folder / way / "error.txt").exists(), (folder / way / "error.txt").read_text()
    if way == "peft-unmerged":
        with pytest.raises(MalformedCheckpoint, match="of an adapter that is not merged"):
            load(folder / way)
    elif way == "peft":
        check_tokens(load(folder / way), folder / "merged")
    elif way == "peft-names":
        check_same(load(folder / way), load(folder / "peft"))
    elif way == "bare" and not plain[0].has_tied_embeddings:
        config, weights = load(folder / way)  # which has no head, so that the embeddings serve
        assert config.has_tied_embeddings
        check_same((plain[0], weights), (plain[0], {key: plain[1][key] for key in weights}))
    else:
        check_same(load(folder / way), plain)
