"""A crowd of requests to models with recurrent layers: each has the tokens that it has alone."""

import itertools
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from service.checkpoint.adapters.host import host_adapter
from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.request import Adapter, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, StateShapes
from service.engine.steps.programs import engine_programs
from service.kernels.native_pages import NativePagedAttention
from service.kernels.reference import PagedReference
from service.models.adapted import adapted_tensors
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from service.weights.low_rank import LowRankUpdate
from tests.engine.running import run, tokens_of
from tests.engine.test_constraints import VOCAB, Remainders
from tests.engine.test_states import NATIVE, case_of

NUM_REQUESTS, AT_ONCE = 660, 40
SHAPES = EngineShapes(
    **{"num_slots": 8, "num_pages": 60, "page_size": 4, "max_model_len": 64, "max_prefill_tokens": 16},
    **{"row_tokens": 8, "has_sampling_variants": False, "skips_padding": True},
    states=StateShapes(20, 16),
    adapters=AdapterShapes(num_slots=2, rank=2),
)
KERNEL = NativePagedAttention() if NATIVE.native.has_products else PagedReference()


class Rule(Remainders):
    """A rule over the model's tokens, of which there is one less."""

    def allowed(self, output):
        return super().allowed(output) - {VOCAB - 1}


class Served:
    """A model with two adapters."""

    def __init__(self, name: str, kv_dtype: np.dtype | None) -> None:
        """Compile it."""
        case, mesh = case_of(name), DeviceMesh((jax.devices()[0],))
        config = read_config("test", json.loads(json.dumps(case.hub_config)))
        model = Decoder(config, kernel=KERNEL, products=NATIVE, kv_dtype=kv_dtype, adapters=SHAPES.adapters)
        base = Decoder(config).weight_specs()
        programs = engine_programs(model, SHAPES, weight_shapes(model.weight_specs(), mesh))
        executables = {name: made.executable for name, made in compile_programs(programs, num_threads=2).items()}
        weights = assemble_weights(base, case.tensors(), mesh=mesh)
        self.runner = Runner(SHAPES, model.layer_groups, weights, executables)
        self.runner.warm()
        random, tensors = np.random.RandomState(8), adapted_tensors(base)
        self.adapters: list[Adapter | None] = [None]
        for number in range(2):
            updates = {
                name: LowRankUpdate(*(0.3 * random.randn(*shape).astype(np.float32) for shape in sizes))
                for name, source in tensors.items()
                if (sizes := ((2, source.shape[1]), (source.shape[0], 2)))
            }
            layout = {"specs": base, "groups": model.layer_groups, "shapes": SHAPES.adapters, "dtype": model.dtype}
            self.adapters.append(host_adapter(f"a{number}", bytes([number]), updates, **layout))

    def requests(self) -> list[Request]:
        """Return new requests, the same each time: some texts begin alike, and some come twice."""
        random = np.random.RandomState(6)
        beginnings = [tuple(random.randint(0, 96, length).tolist()) for length in (0, 3, 8, 17, 24, 32)]
        made = []
        for number in range(NUM_REQUESTS):
            end = tuple(random.randint(0, 96, random.randint(1, 14)).tolist())
            if number % 11 == 0 and made:
                end = made[-1].prompt_ids[-5:]
            seed = {"seed": number, "temperature": 0.8, "top_p": 0.95}
            drawn = [Sampling(temperature=0.0), Sampling(**seed), Sampling(**seed, frequency_penalty=0.6)]
            request = Request(
                str(number),
                beginnings[random.randint(len(beginnings))] + end,
                int(random.randint(1, 17)),
                replace(drawn[random.randint(3)], num_logprobs=0),
                adapter=self.adapters[random.choice(3, p=[0.6, 0.2, 0.2])],
                constraint=Rule(free_every=3) if random.rand() < 0.2 else None,
            )
            made.append(request)
        return made


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "kv_dtype"), [("lfm2", None), ("hero", None), ("qwen3_5", np.dtype(np.int8))])
def test_each_of_a_crowd_has_the_tokens_that_it_has_alone(name, kv_dtype, start_engine):
    served, metrics = Served(name, kv_dtype), ModelMetrics()
    alone = start_engine(served.runner, shapes=SHAPES)
    expected = [tokens_of(run(alone, request)[0]) for request in served.requests()]
    assert len(set(map(tuple, expected))) > NUM_REQUESTS / 2
    crowd = start_engine(served.runner, metrics, shapes=SHAPES, max_requests=AT_ONCE)
    found = itertools.chain.from_iterable(run(crowd, *some) for some in itertools.batched(served.requests(), AT_ONCE))
    assert [tokens_of(events) for events in found] == expected
    assert metrics.value("levserve_num_preemptions_total") > 10
