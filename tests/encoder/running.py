"""A runner of a tiny encoder, made as a start makes it: from its folder, with real executables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint
from service.compile.aot import compile_programs
from service.encoder.batcher import Batcher
from service.encoder.request import EncodeRequest
from service.encoder.runner import EncoderRunner
from service.observability.progress import Progress
from service.settings import Settings
from service.start.kinds.encoder_spec import EncoderSpec, choose_encoder_spec
from service.storage.source import open_source


@dataclass(frozen=True)
class Tiny:
    """The spec of a folder's model, and a runner of it."""

    spec: EncoderSpec
    runner: EncoderRunner
    weights: Mapping[str, jax.Array]

    def hidden_states(self, *texts: list[int]) -> list[np.ndarray]:
        """Return the hidden states of each text's tokens, of texts that share steps."""
        batcher = Batcher(self.runner.shapes)
        batcher.add(EncodeRequest("r", tuple(map(tuple, texts)), wants_tokens=True))
        found: dict[int, np.ndarray] = {}
        while (plan := batcher.plan(self.runner.usable_buckets())) is not None:
            rows = self.runner.read_tokens(self.runner.dispatch(plan), plan)
            found |= {plan.texts[place].number: states for place, states in rows.items()}
        return [found[index] for index in range(len(texts))]

    def vectors(self, *texts: list[int], second_from: list[int] | None = None, prompt_tokens: int = 0) -> np.ndarray:
        """Encode texts, or pairs, together in as few steps as they take."""
        batcher = Batcher(self.runner.shapes)
        request = EncodeRequest("r", tuple(map(tuple, texts)), tuple(second_from or ()), prompt_tokens)
        batcher.add(request)
        found: dict[int, np.ndarray] = {}
        while (plan := batcher.plan(self.runner.usable_buckets())) is not None:
            rows = self.runner.read(self.runner.dispatch(plan), len(plan.texts))
            found |= {text.number: row for text, row in zip(plan.texts, rows, strict=True)}
        return np.array([found[index] for index in range(len(texts))])


def tiny_of(folder: Path, **settings: Any) -> Tiny:
    located = locate(str(folder), lambda location: open_source(location, cache_root=folder))
    spec = choose_encoder_spec(Settings(model_uri=str(folder), **settings), located, jax.devices()[:1])
    limits = LoadLimits(None, Progress(), 2**26)
    weights = load_checkpoint(located, spec.specs, mesh=spec.mesh, limits=limits).weights
    compiled = compile_programs(spec.programs(spec.model()), num_threads=2)
    executables = {name: result.executable for name, result in compiled.items()}
    return Tiny(spec, EncoderRunner(spec.shapes, spec.layer_groups, weights, executables), weights)
