"""The newest transformers saves and runs each family in many spellings; what it saves gives its tokens here.

`make test-all` installs it into `.tools/targets`; without it the tests are skipped. So a layout of next month is a red
test and not a wrong answer.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from service.models.families.hub_keys import FAMILY_KEYS, unknown_keys
from tests.parity.make_saved_configs import CASES, KEYS_OF_NO_USE, MAX_MODEL_LEN, other_defaults, run
from tests.parity.newest import logits_of
from tests.tolerances import SAME_MODEL_ATOL

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TRANSFORMERS_PYTHON") or ROOT / ".tools" / "targets" / "transformers" / "bin" / "python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.xdist_group("newest transformers"),
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no transformers with torch in {PYTHON}; make test-all installs it"
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newest")
    run(str(PYTHON), folder, CASES)
    return folder / "made"


@pytest.mark.parametrize("name", CASES)
def test_what_it_saves_gives_its_tokens(name: str, made: Path):
    folder = made / name
    assert not (folder / "error.txt").exists(), (folder / "error.txt").read_text()
    expected = np.load(folder / "logits.npy")
    for config in ("config.json", "saved/config.json"):
        logits = logits_of(folder, config, MAX_MODEL_LEN.get(name))
        np.testing.assert_allclose(logits, expected, atol=SAME_MODEL_ATOL, rtol=0, err_msg=config)
        np.testing.assert_array_equal(logits.argmax(-1), expected.argmax(-1), err_msg=config)


def test_it_saves_no_key_that_is_unknown(made: Path):
    names = [name for name in CASES if name not in KEYS_OF_NO_USE]
    saved = {name: json.loads((made / name / "saved" / "config.json").read_text()) for name in names}
    assert {name: keys for name, values in saved.items() if (keys := unknown_keys(values))} == {}


def test_its_defaults_are_those_of_the_table(made: Path):
    theirs = json.loads((made / "defaults.json").read_text())
    found = {name: other_defaults(name, theirs[name]) for name in FAMILY_KEYS}
    assert {name: differences for name, differences in found.items() if differences} == {}
