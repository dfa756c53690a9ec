"""Files that are no pickled weights: each is refused by name, and nothing in it is executed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import RefusedPickle
from service.weights.pickled import machine
from service.weights.pickled.machine import interpret
from service.weights.pickled.values import PickleRefusal
from tests.weights.pickled.corpus import CORPUS, EIGHT, EXECUTING, GOOD, PLAIN, SING
from tests.weights.pickled.read import entries_of
from tests.weights.pickled.written import archive, call, dictionary, legacy, pickled

ROOT = Path(__file__).parents[3]
CANARY, TRACE = "tests.weights.pickled.canary", "LEVSERVE_TEST_CANARY"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that exists once the canary has sung."""
    path = tmp_path / "trace"
    monkeypatch.setenv(TRACE, str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delitem(sys.modules, CANARY, raising=False)
    return path


def test_the_corpus_is_large():
    assert len(CORPUS) >= 80
    assert len(EXECUTING) >= 30


def test_the_canary_sings_in_pythons_own_unpickler(tmp_path: Path, trace: Path):
    path = tmp_path / "pickle"
    path.write_bytes(pickled(call(SING)))
    code = f"import pickle; pickle.loads(open({str(path)!r}, 'rb').read())"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    assert trace.exists()


@pytest.mark.parametrize("name", CORPUS)
def test_a_file_is_refused_and_nothing_is_executed(tmp_path: Path, trace: Path, name: str):
    content, message = CORPUS[name]
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(RefusedPickle, match=message) as caught:
        entries_of(folder, content)
    assert (caught.value.uri, caught.value.file) == (str(folder), "pytorch_model.bin")
    assert "Nothing in it was executed." in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert not trace.exists()
    assert CANARY not in sys.modules


def test_a_refusal_names_what_the_file_asks_for(tmp_path: Path):
    with pytest.raises(RefusedPickle) as caught:
        entries_of(tmp_path, EXECUTING["os.system"][0])
    assert caught.value.name == "os.system"
    with pytest.raises(RefusedPickle) as caught:
        entries_of(tmp_path, CORPUS["a storage of no tensor"][0])
    assert caught.value.name == "1"


@pytest.mark.parametrize("content", [archive(pickled(GOOD), EIGHT), legacy(GOOD, EIGHT)], ids=["zip", "legacy"])
def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path, content: bytes):
    assert set(entries_of(tmp_path, content)) == {"w"}
    for length in [*range(0, len(content), 5), len(content) - 1]:
        with pytest.raises(RefusedPickle):
            entries_of(tmp_path, content[:length])


def test_the_number_of_opcodes_is_bounded(monkeypatch: pytest.MonkeyPatch):
    data = pickled(dictionary({"w": PLAIN}))
    assert interpret(data)[1] == len(data)
    monkeypatch.setattr(machine, "MAX_OPCODES", 20)
    with pytest.raises(PickleRefusal, match="more than 20 opcodes"):
        interpret(data)


def test_a_long_pickle_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.weights.pickled.archive.MAX_PICKLE_BYTES", 100)
    with pytest.raises(RefusedPickle, match="a pickle of more than 100 bytes"):
        entries_of(tmp_path, archive(pickled(GOOD), EIGHT))
    monkeypatch.setattr("service.weights.pickled.archive.MAX_RECORDS", 3)
    with pytest.raises(RefusedPickle, match="more than 3 records"):
        entries_of(tmp_path, archive(pickled(GOOD), EIGHT))


def test_a_directory_that_is_too_long_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.weights.pickled.pieces.MAX_BYTES", 1000)
    with pytest.raises(RefusedPickle, match="describes its tensors in more than 1000 bytes"):
        entries_of(tmp_path, archive(pickled(GOOD), EIGHT))
