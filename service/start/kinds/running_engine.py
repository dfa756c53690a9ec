"""A running generative model."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

from service.api.served import Served, ServedModel, Vision
from service.device.read_speed import measure_read_speed
from service.engine.drafter import Drafter
from service.engine.engine import Engine
from service.engine.group import EngineGroup
from service.engine.request import MAX_SEQUENCES, Adapter, Request, Sampling
from service.engine.runner import DeviceState, Runner
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.proposers import ForcedProposer, PredictionProposer
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import EngineShapes
from service.errors import Draining, Overloaded
from service.models.description import ImageEncoder, PatchEncoder
from service.models.interface import LayerGroup
from service.settings import SpeculationMode
from service.start.context import StartContext
from service.start.kinds.draft_spec import without_prefix
from service.start.kinds.model_spec import EngineParts, Running, TextFiles
from service.start.kinds.vision import read_vision
from service.start.read_speed import read_speed

# Decode steps that a start times before it says what share of the memory's speed they reach, and for how long at most.
PROBE_TOKENS, PROBE_S = 16, 0.5


class RunnerMaker:
    """Makes the runner of one engine, and another one after a failure."""

    def __init__(
        self,
        shapes: EngineShapes,
        groups: Sequence[LayerGroup],
        encoder_groups: Sequence[LayerGroup],
        parts: EngineParts,
        make_drafter: Callable[[DeviceState], Drafter] | None = None,
    ) -> None:
        self.shapes = shapes
        self.make_drafter = make_drafter  # None without a draft model or a head
        self._groups, self._encoder_groups = groups, encoder_groups
        self._weights, self._executables = without_prefix(parts.weights, is_draft=False), parts.executables
        self._state: DeviceState | None = parts.state  # until the first runner has it

    def __call__(self) -> Runner:
        """Return a runner, whose slots and caches are new."""
        state, self._state = self._state, None
        groups, encoder_groups = self._groups, self._encoder_groups
        return Runner(self.shapes, groups, self._weights, self._executables, state, encoder_groups=encoder_groups)


class RunningEngine(Running):
    """One engine, or several with the same weights."""

    def __init__(
        self,
        context: StartContext,
        makers: Sequence[RunnerMaker],
        vocab_size: int,
        formats: Mapping[str, str],
        turns: Callable[[int], DeviceTurns] | None = None,
        *,
        image_encoder: ImageEncoder | PatchEncoder | None = None,
        read_adapter: Callable[[str, str], Adapter] | None = None,
    ) -> None:
        """Start the device threads.

        Args:
            context: the start of the model.
            makers: of the runner of each engine.
            vocab_size: rows of the embedding.
            formats: what the API says of the numbers.
            turns: of an engine with those of other models on its devices; None on a CPU.
            image_encoder: of a model that takes images.
            read_adapter: reads an adapter by its name and address; None for a model without slots for any.
        """
        self._image_encoder, self._max_image_tokens = image_encoder, context.settings.max_image_tokens
        self._read_adapter = read_adapter
        max_stall_ms = context.settings.max_step_stall_ms

        self._runners: dict[int, Runner] = {}
        self._drafters: dict[int, Drafter] = {}

        def make(number: int, on_failure: Callable[[], None]) -> Engine:
            if (failed := self._runners.pop(number, None)) is not None:
                failed.delete_state()  # its engine's errors, which clients have yet to read, refer to it
            runner = self._runners[number] = makers[number]()
            if (make_drafter := makers[number].make_drafter) is not None:
                self._drafters[number] = make_drafter(runner.state)
            return Engine(
                runner,
                runner.shapes,
                context.model_metrics,
                max_requests=context.settings.max_concurrent_requests * MAX_SEQUENCES,
                max_stall_s=None if max_stall_ms is None else max_stall_ms / 1000,
                on_failure=on_failure,
                turns=None if turns is None else turns(number),
                number=number,
                speculation=_speculation(runner.shapes, context.settings.speculation, self._drafters.get(number)),
            )

        if len(makers) == 1:
            self._engine: Engine | EngineGroup = make(0, context.on_engine_failure)
        else:
            self._engine = EngineGroup(
                len(makers), make, context.on_engine_failure, max_step_s=context.settings.watchdog_seconds
            )
        self._engine.start()
        self._shapes = makers[0].shapes
        self._vocab_size, self._formats = vocab_size, formats
        self._operator_defaults = context.defaults
        self._settings, self._load = context.settings, context.model_metrics.load_of(0)

    @property
    @override
    def thread(self) -> Engine | EngineGroup:
        return self._engine

    @property
    def _engines(self) -> Sequence[Engine]:
        return self._engine.engines if isinstance(self._engine, EngineGroup) else [self._engine]

    @override
    def probe(self) -> None:
        for engine in self._engines:
            asyncio.run(self._generate(engine, 1))

    @override
    def run_all(self) -> None:
        for engine in self._engines:
            drafter = self._drafters.get(engine.number)
            of_draft = () if drafter is None else drafter.padded_steps()
            for step in itertools.chain(self._runners[engine.number].padded_steps(), of_draft):
                engine.run_between_steps(step)

    @override
    def measured_fields(self) -> Mapping[str, Any]:
        engine = self._engines[0]
        weights = self._runners[engine.number].product_weights
        num_bytes = sum(array.nbytes for array in weights)
        if num_bytes == 0 or any(device.platform != "cpu" for device in weights[0].devices()):
            return {}

        def measure() -> float | None:
            measured: list[float | None] = []
            engine.run_between_steps(lambda: measured.append(measure_read_speed(weights)))
            return measured[0]

        bytes_per_s = read_speed(self._settings, measure)
        if bytes_per_s is None:
            return {}
        self._load.least_decode_s = num_bytes / bytes_per_s
        if self._load.decode_s == 0:
            asyncio.run(self._generate(engine, PROBE_TOKENS, PROBE_S))
        return {
            "memory_read_gb_per_s": round(bytes_per_s / 1e9, 1),
            "decode_weights_gb": round(num_bytes / 1e9, 3),
            "most_decode_steps_per_s": round(1 / self._load.least_decode_s, 1),
            "share_of_read_speed": self._load.share_of_read_speed,
        }

    @override
    def served(self, text: TextFiles, **facts: Any) -> Served:
        return ServedModel(
            **facts,
            engine=self._engine,
            tokenizer=text.tokenizer,
            chat_template=text.chat_template,
            max_model_len=self._shapes.max_model_len,
            vocab_size=self._vocab_size,
            stop_ids=text.tokenizer.eos_ids,
            defaults=text.tokenizer.defaults,
            operator_defaults=self._operator_defaults,
            read_adapter=self._read_adapter,
            number_formats=self._formats,
            num_drafts=self._shapes.num_drafts,
            vision=self._vision(text, facts["name"]),
            keeps_states=self._shapes.states is not None,
        )

    def _vision(self, text: TextFiles, uri: str) -> Vision | None:
        """Return how the model takes images, if it does.

        Raises:
            MalformedCheckpoint: the files beside the weights do not say it, or ask for what is not done here.
        """
        encoder, shapes = self._image_encoder, self._shapes.media
        if encoder is None or shapes is None:
            return None
        return read_vision(uri, text, encoder, shapes, self._max_image_tokens)

    def _probe_request(self, num_tokens: int) -> Request:
        return Request("warm", (0,), num_tokens, Sampling(temperature=0.0))

    async def _generate(self, engine: Engine, num_tokens: int, limit_s: float | None = None) -> None:
        """Generate tokens and drop them, for so long at most; the model may end them before."""
        # A full engine is about to generate tokens for clients, and a drain needs none.
        with contextlib.suppress(Overloaded, Draining, TimeoutError):
            async with asyncio.timeout(limit_s):
                async for _ in engine.submit(self._probe_request(num_tokens)):
                    pass


def _speculation(shapes: EngineShapes, mode: SpeculationMode, drafter: Drafter | None) -> Speculation | None:
    if not shapes.num_drafts:
        return None
    certain = (ForcedProposer(), PredictionProposer()) if mode == "draft" else None
    return Speculation(shapes, certain, model=drafter, is_adaptive=mode == "auto")
