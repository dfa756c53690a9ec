"""Interfaces between a start and the kinds of models: the spec before weights are loaded, and the running model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from service.bundles.key import BundleKey
from service.compile.program import Executable, Program
from service.device.memory import Device
from service.device.mesh import DeviceMesh
from service.engine.device_thread import DeviceThread
from service.engine.group import EngineGroup
from service.models.weight_spec import WeightSpec, device_bytes

if TYPE_CHECKING:
    from service.api.served import Served
    from service.start.context import StartContext
    from service.text.chat_template import ChatTemplate
    from service.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextFiles:
    """What the host needs of a checkpoint for texts."""

    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    generation: Mapping[str, Any]  # what generation_config.json says; empty without one
    preprocessor: Mapping[str, Any] = field(default_factory=dict)  # the same of preprocessor_config.json


class EngineParts(NamedTuple):
    """What one engine of a model has on its devices."""

    weights: Mapping[str, jax.Array]
    executables: Mapping[str, Executable]
    state: Any  # of slots and caches, as `ModelSpec.begin_state` returns it


class ProgramNames(NamedTuple):
    """The names of a model's programs."""

    every: Sequence[str]  # roughly in the order in which requests need them
    first: Sequence[str]  # needed for the first answer to a short request
    compile_order: Sequence[str]  # all of them, by how much compiling each one next would speed up a live service
    sufficient: Sequence[str]  # the prefix of `compile_order` that can answer any request


@runtime_checkable
class Running(Protocol):
    """A model that accepts requests."""

    @property
    def thread(self) -> DeviceThread | EngineGroup:
        """The thread that runs its steps, or the group of those of several engines."""
        ...

    def probe(self) -> None:
        """Compute one token or vector; raises EngineError on failure."""
        ...

    def run_all(self) -> None:
        """Run every executable once, while serving requests."""
        ...

    def measured_fields(self) -> Mapping[str, Any]:
        """Measure the machine, and return fields for the last log line of a start."""
        ...

    def served(self, text: TextFiles, **facts: Any) -> "Served":
        """Return the model for the API; `facts` are the fields that all kinds of models have, such as the name."""
        ...


@dataclass(frozen=True)
class ModelSpec(ABC):
    """Everything known about a model before its weights are loaded."""

    dtype: np.dtype  # of activations, and of weights that are not quantized
    specs: tuple[WeightSpec, ...]
    mesh: DeviceMesh
    key: BundleKey

    @property
    def meshes(self) -> Sequence[DeviceMesh]:
        """The devices of each engine; `mesh` is the first."""
        return (self.mesh,)

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of all engines."""
        return [device for mesh in self.meshes for device in mesh.devices]

    @property
    def all_specs(self) -> tuple[WeightSpec, ...]:
        """The weights of the checkpoint, and those of another that are loaded with them."""
        return self.specs

    @property
    def own_specs(self) -> tuple[WeightSpec, ...]:
        """Those of them that are in the checkpoint itself."""
        return self.specs

    def copy_weights(self, weights: Mapping[str, jax.Array], mesh: DeviceMesh) -> Mapping[str, jax.Array]:
        """Copy the weights of the first engine to the devices of another."""
        shardings = {spec.name: mesh.sharding(spec.axes, spec.shape) for spec in self.all_specs}
        return jax.device_put(dict(weights), shardings)

    @property
    def weights_bytes(self) -> int:
        """The size of the weights on each device."""
        return weights_bytes(self.all_specs, self.mesh)

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """The memory that the running model needs on each device."""

    def recipe(self) -> list[dict[str, Any]]:
        """Return the source and sharding of each weight as plain JSON."""
        return [
            asdict(spec) | {"dtype": spec.dtype.name, "sharding": list(self.mesh.partition(spec.axes, spec.shape))}
            for spec in self.all_specs
        ]

    @property
    @abstractmethod
    def names(self) -> ProgramNames:
        """The names of the model's programs."""

    @property
    def media_package(self) -> str | None:
        """The package of the extra `media` that decodes what requests bring; None if they bring only text."""
        return None

    @property
    @abstractmethod
    def log_fields(self) -> Mapping[str, Any]:
        """The model's kind and sizes, for the log."""

    @property
    @abstractmethod
    def shape_fields(self) -> Mapping[str, Any]:
        """The sizes of steps, for /admin/stats."""

    @property
    @abstractmethod
    def ready_fields(self) -> Mapping[str, Any]:
        """Fields about the model for the last log line of a start."""

    def kernel_fault(self) -> str | None:
        """Run the attention kernel on a small case; return what is wrong with it, None if nothing is.

        What is not a kernel of this project, as an encoder's attention, is left to XLA.
        """
        return None

    @abstractmethod
    def model(self) -> Any:
        """Return the model to trace; needed only without a bundle."""

    @abstractmethod
    def programs(self, model: Any) -> Sequence[Program]:
        """Return the programs of the model returned by `model`."""

    @abstractmethod
    def begin_state(self, executables: Mapping[str, Executable]) -> Any:
        """Allocate the device state that steps need in addition to weights."""

    @abstractmethod
    def start(self, context: "StartContext", engines: Sequence[EngineParts]) -> Running:
        """Start the device threads of the engines."""

    @abstractmethod
    def run_once(self, weights: Mapping[str, jax.Array], executables: Mapping[str, Executable]) -> None:
        """Run every executable once, without a device thread."""


def weights_bytes(specs: Iterable[WeightSpec], mesh: DeviceMesh) -> int:
    """Return the size of weights on each device."""
    return sum(device_bytes(mesh.shard_shape(spec.axes, spec.shape), spec.dtype) for spec in specs)
