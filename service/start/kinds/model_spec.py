"""A model as a start knows it before its weights are loaded, and as it runs afterwards.

A start treats all kinds alike: one bundle, one loader, one graph of tasks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from service.bundles.key import BundleKey
from service.compile.program import Executable, Program
from service.device.mesh import DeviceMesh
from service.engine.device_thread import DeviceThread
from service.models.weight_spec import WeightSpec

if TYPE_CHECKING:
    import jax

    from service.api.served import Served
    from service.start.context import StartContext
    from service.text.chat_template import ChatTemplate
    from service.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Text:
    """What turns requests into token ids."""

    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"


class ProgramNames(NamedTuple):
    """The names of a model's programs."""

    every: Sequence[str]  # about in the order in which requests need them
    first: Sequence[str]  # what the first answer to a short request needs
    compile_order: Sequence[str]  # all, those first that are worth most to a service that answers already
    sufficient: Sequence[str]  # the beginning of `compile_order`, with which any request can be answered


@runtime_checkable
class Running(Protocol):
    """A model that takes requests."""

    @property
    def thread(self) -> DeviceThread:
        """The thread that runs its steps."""
        ...

    def probe(self) -> None:
        """Compute one token or vector; raises EngineError if none comes out."""
        ...

    def run_all(self) -> None:
        """Run every executable once, beside requests."""
        ...

    def served(self, text: Text, **facts: Any) -> "Served":
        """Return the model as the API knows it; `facts` are its name, and what else all kinds have."""
        ...


@dataclass(frozen=True)
class ModelSpec(ABC):
    """Everything about a model that is known before its weights are loaded."""

    dtype: np.dtype  # of activations, and of weights that are not quantized
    specs: tuple[WeightSpec, ...]
    mesh: DeviceMesh
    key: BundleKey

    @property
    def weights_bytes(self) -> int:
        """What the weights take on each device."""
        return weights_bytes(self.specs, self.mesh)

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """What the running model takes on each device."""

    def recipe(self) -> list[dict[str, Any]]:
        """Return how each weight is made and split, as plain JSON."""
        return [
            asdict(spec) | {"dtype": spec.dtype.name, "sharding": list(self.mesh.partition(spec.axes, spec.shape))}
            for spec in self.specs
        ]

    @property
    @abstractmethod
    def names(self) -> ProgramNames:
        """The names of the model's programs."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """The model's kind and sizes, for the log."""

    @property
    @abstractmethod
    def shape_facts(self) -> Mapping[str, Any]:
        """The sizes of steps, for /admin/stats."""

    @property
    @abstractmethod
    def ready_facts(self) -> Mapping[str, Any]:
        """What the last line of a start says about the model."""

    @abstractmethod
    def model(self) -> Any:
        """Return the model to trace; only a start without a bundle asks."""

    @abstractmethod
    def programs(self, model: Any) -> Sequence[Program]:
        """Return the programs of the model that `model` returned."""

    @abstractmethod
    def begin_state(self, executables: Mapping[str, Executable]) -> Any:
        """Make the device state that steps need besides weights."""

    @abstractmethod
    def start(
        self,
        context: "StartContext",
        weights: "Mapping[str, jax.Array]",
        executables: Mapping[str, Executable],
        state: Any,
    ) -> Running:
        """Start the device thread; `state` is what `begin_state` returned."""

    @abstractmethod
    def run_once(self, weights: "Mapping[str, jax.Array]", executables: Mapping[str, Executable]) -> None:
        """Run every executable once, without a device thread."""


def weights_bytes(specs: Iterable[WeightSpec], mesh: DeviceMesh) -> int:
    """Return what weights take on each device."""
    return sum(math.prod(mesh.shard_shape(spec.axes, spec.shape)) * spec.dtype.itemsize for spec in specs)
