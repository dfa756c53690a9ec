"""Modules whose execution is deferred until one of their attributes is read."""

import importlib
import sys
import threading
from pathlib import Path

import pytest

from service.start.imports import deferred, run_deferred

NAMES = ("late", "late_other", "late_package", "late_package.inner")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what writes a module and imports it, put off."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str, name: str = "late"):
        path = tmp_path / f"{name}.py"
        path.write_text("import builtins\nbuiltins.runs.append(__name__)\n" + source)
        importlib.invalidate_caches()
        with deferred(NAMES):
            return importlib.import_module(name)

    monkeypatch.setattr("builtins.runs", [], raising=False)
    yield make
    for name in NAMES:
        sys.modules.pop(name, None)


def runs() -> list[str]:
    import builtins

    return builtins.runs  # type: ignore[attr-defined]


def test_it_runs_when_something_of_it_is_asked_for_and_only_once(make):
    late = make("value = 3")
    import late as again  # a second import is not enough

    assert (again is late, runs()) == (True, [])
    assert (late.value, late.value, runs()) == (3, 3, ["late"])
    assert type(late) is type(sys)


def test_a_name_taken_from_it_runs_it(make):
    make("value = 3")
    from late import value

    assert (value, runs()) == (3, ["late"])


def test_a_name_that_is_not_there_is_missing_as_ever(make):
    late = make("value = 3")
    with pytest.raises(AttributeError, match="nothing"):
        late.nothing  # noqa: B018


def test_a_modules_own_getattr_is_asked(make):
    assert make("def __getattr__(name): return name.upper()").anything == "ANYTHING"


def test_what_goes_wrong_in_it_is_told_each_time(make):
    late = make("raise ImportError('it lacks something')")
    for _ in range(2):
        with pytest.raises(ImportError, match="it lacks something"):
            late.value  # noqa: B018


def test_of_two_threads_one_runs_it_and_the_other_waits(make):
    late = make("import time\ntime.sleep(0.2)\nvalue = 3")
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(late.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, runs()) == ([3] * 4, ["late"])


def test_modules_that_need_one_another_see_as_much_as_there_is(make):
    make("value = 3\nfrom late_other import other")
    make("import late\nother = late.value + 1", "late_other")
    assert (sys.modules["late"].other, runs()) == (4, ["late", "late_other"])


def test_all_that_waits_can_be_run(make):
    make("value = 3")
    make("import late", "late_other")
    run_deferred()
    assert sorted(runs()) == ["late", "late_other"]


def test_others_are_run_at_once(make, tmp_path: Path):
    (tmp_path / "prompt_module.py").write_text("import builtins\nbuiltins.runs.append(__name__)")
    with deferred(NAMES):
        import prompt_module  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert runs() == ["prompt_module"]
