"""Adapters side by side in one batch: each request is answered as by a server of its own model alone."""

from dataclasses import replace

import numpy as np
import pytest

from service.compile.aot import compile_programs
from service.compile.counter import CompileCounter
from service.device.native.library import native_code
from service.engine.request import Adapter, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes
from service.engine.steps.programs import engine_programs
from service.errors import NonFiniteLogits
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.low_rank import LowRankUpdate
from tests.engine.running import run, tokens_of
from tests.parity.adapter_cases import BASES
from tests.parity.test_adapter_slots import base_weights, laid_out, mesh
from tests.tolerances import SAME_MODEL_ATOL

SLOTS = AdapterShapes(num_slots=2, rank=8)
SHAPES = EngineShapes(
    num_slots=6,
    num_pages=20,  # too few for all slots, so that sequences are preempted
    page_size=4,
    max_model_len=32,
    max_prefill_tokens=8,
    row_tokens=8,
    skips_padding=True,
    has_sampling_variants=False,
)
BASE = BASES["llama_grouped_heads"]


def random_updates(seed: int, scale: float = 0.3) -> dict[str, LowRankUpdate]:
    """Return updates of some layers, of other ranks for each seed."""
    random = np.random.RandomState(seed)
    rank = 1 + seed % SLOTS.rank
    return {
        name: LowRankUpdate(
            (random.randn(rank, tensor.shape[1]) * scale).astype(np.float32),
            (random.randn(tensor.shape[0], rank) * scale).astype(np.float32),
        )
        for name, tensor in BASE.tensors().items()
        if "_proj" in name and random.rand() < 0.8
    }


def merged_tensors(updates: dict[str, LowRankUpdate]) -> dict[str, np.ndarray]:
    return {
        name: tensor + updates[name].b @ updates[name].a if name in updates else tensor
        for name, tensor in BASE.tensors().items()
    }


class Served:
    """Executables of the base model, with slots or without, and runners of it."""

    def __init__(self, adapters: AdapterShapes | None) -> None:
        self.shapes = replace(SHAPES, adapters=adapters)
        products = Products(SPLIT.num_splits, native_code()) if native_code().has_products else PLAIN
        self.model = Decoder(read_config("m", BASE.hub_config), products=products, adapters=adapters)
        programs = engine_programs(self.model, self.shapes, weight_shapes(self.model.weight_specs(), mesh()))
        compiled = compile_programs(programs, num_threads=2)
        self.executables = {name: program.executable for name, program in compiled.items()}

    def runner(self, tensors: dict[str, np.ndarray]) -> Runner:
        weights = base_weights(self.model, tensors)
        runner = Runner(self.shapes, self.model.layer_groups, weights, self.executables)
        runner.warm()
        return runner


@pytest.fixture(scope="module")
def with_slots() -> Served:
    return Served(SLOTS)


@pytest.fixture(scope="module")
def without_slots() -> Served:
    return Served(None)


GREEDY = Sampling(temperature=0.0, num_logprobs=3)


def requests(adapters: list[Adapter | None], **changed) -> list[Request]:
    """Return requests with prompts of many lengths, some of which begin alike."""
    random = np.random.RandomState(5)
    start = tuple(random.randint(0, 96, 9).tolist())
    return [
        Request(
            f"{number}-{changed}",
            (start if number % 2 else ()) + tuple(random.randint(0, 96, 3 + number % 7).tolist()),
            max_tokens=4 + number % 5,
            sampling=GREEDY,
            adapter=adapter,
            **changed,
        )
        for number, adapter in enumerate(adapters)
    ]


def logprobs_of(events) -> list[float]:
    return [entry.logprob for event in events for entry in event.logprobs]


def test_a_mixed_batch_answers_each_request_as_a_server_of_its_model_alone(with_slots, without_slots, start_engine):
    updates = [random_updates(seed) for seed in range(5)]
    adapters = [laid_out(f"a{seed}", own, with_slots.model) for seed, own in enumerate(updates)]
    chosen = [None, 0, 1, None, 2, 3, 4, 0, None, 1, 3, 3, 2, None, 4, 4, 0, 0, 1, None]
    asked = requests([None if number is None else adapters[number] for number in chosen])
    metrics = ModelMetrics()
    engine = start_engine(with_slots.runner(BASE.tensors()), metrics, with_slots.shapes, max_requests=64)
    counter = CompileCounter()
    mixed = run(engine, *asked)
    again = run(engine, *[replace(request, id=f"{request.id} again") for request in asked[::-1]])[::-1]
    assert counter.num_compiles == 0
    counter.close()
    assert metrics.value("levserve_num_preemptions_total") > 0
    assert list(map(tokens_of, again)) == list(map(tokens_of, mixed))
    assert any(event.num_cached_tokens for events in again if isinstance(events, list) for event in events)

    for number in {None, *range(5)}:
        tensors = BASE.tensors() if number is None else merged_tensors(updates[number])
        alone = start_engine(without_slots.runner(tensors), shapes=without_slots.shapes, max_requests=64)
        own = [index for index, other in enumerate(chosen) if other == number]
        expected = run(alone, *[replace(asked[index], adapter=None) for index in own])
        for index, events in zip(own, expected, strict=True):
            assert tokens_of(mixed[index]) == tokens_of(events)
            atol = 0 if number is None else SAME_MODEL_ATOL
            np.testing.assert_allclose(logprobs_of(mixed[index]), logprobs_of(events), atol=atol, rtol=0)
        alone.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_660_requests_over_twelve_adapters_and_none_each_is_answered_alone_as_among_forty(with_slots, start_engine):
    adapters = [None, *(laid_out(f"a{seed}", random_updates(seed), with_slots.model) for seed in range(12))]
    random = np.random.RandomState(12)
    asked = requests([adapters[number] for number in random.randint(0, len(adapters), 660)])
    metrics = ModelMetrics()
    engine = start_engine(with_slots.runner(BASE.tensors()), metrics, with_slots.shapes, max_requests=64)
    together = [events for first in range(0, 660, 40) for events in run(engine, *asked[first : first + 40])]
    assert metrics.value("levserve_num_preemptions_total") > 0
    num_found = sum(event.num_cached_tokens > 0 for events in together for event in events)
    assert 0 < num_found < len(asked) * 8
    lonely = start_engine(with_slots.runner(BASE.tensors()), shapes=with_slots.shapes, max_requests=64)
    for request, events in zip(asked, together, strict=True):
        # Under a salt of its own it finds no pages that others left.
        [alone] = run(lonely, replace(request, cache_salt=request.id.encode()))
        assert tokens_of(alone) == tokens_of(events)
        # After a preemption, tokens that were decoded are prefilled, which adds in another order.
        np.testing.assert_allclose(logprobs_of(alone), logprobs_of(events), atol=SAME_MODEL_ATOL, rtol=0)


def test_an_adapter_whose_products_are_no_numbers_ends_its_own_requests_alone(with_slots, start_engine):
    good = laid_out("good", random_updates(1), with_slots.model)
    broken = laid_out("broken", random_updates(2, scale=3e37), with_slots.model)
    engine = start_engine(with_slots.runner(BASE.tensors()), shapes=with_slots.shapes, max_requests=64)
    [request] = requests([None])
    alone = [
        run(engine, replace(request, id=f"{number}", adapter=adapter, cache_salt=b"alone"))[0]
        for number, adapter in enumerate((None, good))
    ]
    asked = [
        replace(request, id=adapter.name if adapter else "none", adapter=adapter) for adapter in (None, broken, good)
    ]
    base, failure, other = run(engine, *asked)
    assert isinstance(failure, NonFiniteLogits)
    assert [tokens_of(base), tokens_of(other)] == list(map(tokens_of, alone))
