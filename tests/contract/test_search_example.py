"""The example of a search, with MiniLM's real weights and the demo model, each in a process."""

import pytest

from examples.search import run
from tests.parity.sentences import minilm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = {
    "home.txt": "The cat sleeps on the warm stove all winter.\n\nBread is made of flour, water, salt and yeast.\n",
    "far/world.md": "Paris is the capital of France, on the Seine.\n\n\nJupiter is the largest of all the planets.\n",
}


def test_the_passage_that_a_question_is_about_comes_first(tmp_path, capsys):
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    run.main([str(tmp_path), "How does one bake a loaf?", "--encoder-uri", str(minilm())])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("home.txt: Bread is made of flour, water, salt and yeast.")
    assert lines[3] == "> How does one bake a loaf?"
    assert lines[4].strip()


def test_a_folder_without_texts_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="has no texts"):
        run.main([str(tmp_path), "Why?"])
