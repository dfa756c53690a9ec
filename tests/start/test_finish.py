"""The executables that a start runs once behind its first token."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from service.start.finish import obtain_rest


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
