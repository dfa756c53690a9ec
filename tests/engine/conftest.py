"""A real engine over a model that can be counted by hand: real steps, real executables, tiny sizes."""

from dataclasses import replace

import jaxtyping
import pytest

from benchmarks.hand_counted import HandCountedModel
from service.compile.aot import compile_programs
from service.engine.engine import Engine
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes
from service.engine.steps.programs import engine_programs
from service.observability.model_metrics import ModelMetrics

SHAPES = EngineShapes(num_slots=3, num_pages=24, page_size=4, max_model_len=48, max_prefill_tokens=8, row_tokens=4)


@pytest.fixture(scope="session")
def model():
    return HandCountedModel()


@pytest.fixture(
    scope="session", params=[True, pytest.param(False, marks=pytest.mark.grid)], ids=["accelerator", "host"]
)
def shapes(request):
    return replace(SHAPES, has_sampling_variants=request.param)


@pytest.fixture(scope="session")
def executables(model, shapes):
    compiled = compile_programs(engine_programs(model, shapes, {}), num_threads=2)
    return {name: program.executable for name, program in compiled.items()}


@pytest.fixture(scope="session")
def runner(model, shapes, executables):
    """One runner for all tests: what an earlier one left in its pages must never show."""
    return Runner(shapes, model.layer_groups, {}, executables)


@pytest.fixture(scope="module")
def unchecked_types():
    """Call without jaxtyping's look at every argument, which takes nine tenths of the time of thousands of steps."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def start_engine():
    """Start engines that are stopped, and looked at for lost pages and slots, when the test is over."""
    engines = []

    def start(runner, metrics=None, shapes=SHAPES, **options):
        engine = Engine(runner, shapes, metrics or ModelMetrics(), **{"max_requests": 32} | options)
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.stop()
        engine.check_integrity()


@pytest.fixture
def engine(start_engine, runner):
    return start_engine(runner)


@pytest.fixture
def anyio_backend():
    return "asyncio"
