"""A real engine over a model that can be counted by hand: real steps, real executables, tiny sizes."""

import pytest

from service.compile.aot import compile_programs
from service.engine.engine import Engine
from service.engine.programs import engine_programs
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes
from service.observability.metrics import Metrics
from tests.fakes import HandCountedModel, HandCountedRows

SHAPES = EngineShapes(num_slots=3, num_pages=24, page_size=4, max_context=48, max_prefill_tokens=8)


@pytest.fixture(scope="session", params=[HandCountedModel, HandCountedRows], ids=["pages", "rows"])
def model(request):
    return request.param()


@pytest.fixture(scope="session")
def executables(model):
    compiled = compile_programs(engine_programs(model, SHAPES, {}), num_threads=2)
    return {name: program.executable for name, program in compiled.items()}


@pytest.fixture(scope="session")
def runner(executables):
    """One runner for all tests: what an earlier one left in its pages must never show."""
    return Runner(SHAPES, {}, executables)


@pytest.fixture
def engine(runner):
    engine = Engine(runner, SHAPES, Metrics(), max_requests=32)
    engine.start()
    yield engine
    engine.stop()
    engine._scheduler.check_integrity()
