"""The end of a start: its first token, and the executables that it runs once behind it."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from service.start import finish
from service.start.finish import obtain_rest, probe


@pytest.mark.parametrize(
    ("platform", "is_hit", "is_shared", "runs"),
    [
        ("cpu", False, False, 1),
        ("cpu", True, False, 0),
        ("gpu", True, False, 1),
        ("tpu", True, False, 1),
        ("cpu", True, True, 0),
        ("gpu", True, True, 0),
    ],
)
def test_what_was_compiled_runs_and_on_an_accelerator_what_was_loaded_too(platform, is_hit, is_shared, runs):
    ran = []
    context = SimpleNamespace(progress=SimpleNamespace(phase=lambda *_, **__: nullcontext({})))
    spec = SimpleNamespace(mesh=SimpleNamespace(platform=platform), names=SimpleNamespace(every=()))
    bundle = SimpleNamespace(spec=spec, begin_s=0.0, bundle=None, outcome="hit" if is_hit else "miss")
    waits = {"wait": lambda: None, "wait_elsewhere": lambda: None}
    executables = SimpleNamespace(is_hit=is_hit, is_shared=is_shared, **waits)
    engine = SimpleNamespace(run_all=lambda: ran.append("all"))
    assert obtain_rest(context, bundle=bundle, executables=executables, engine=engine)
    assert len(ran) == runs


@pytest.mark.parametrize(("early", "probes"), [([], 1), ([1, 1, 0], 0), ([1] * 10_000, 1)])
def test_a_start_computes_a_token_of_its_own_only_if_no_early_request_is_answered_in_time(monkeypatch, early, probes):
    left, marked, probed = list(early), [], []
    thread = SimpleNamespace(first_answer_s=None, num_open=0)

    def num_early():
        number = left.pop(0) if left else 0
        if early and not number:
            thread.first_answer_s = 12.0
        return number

    now_s = iter(range(10_000))
    monkeypatch.setattr(finish, "time", SimpleNamespace(monotonic=lambda: next(now_s) / 10, sleep=lambda _: None))
    monkeypatch.setattr(finish, "end_quick_imports", lambda: None)
    engine = SimpleNamespace(thread=thread, probe=lambda: probed.append("token"))
    context = SimpleNamespace(num_early=num_early, progress=SimpleNamespace(mark_answering=marked.append))
    probe(context, checkpoint=None, spec=None, weights=None, engine=engine)
    assert len(probed) == probes
    assert marked == [thread.first_answer_s]
