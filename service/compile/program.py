"""Programs and their executables, which take only the arrays that they use.

The arguments of a step are hundreds of arrays: weights, and state that stays on the device. Passing one costs a few
microseconds even if it is unused, and an unused state array would be both an argument and a result. So the unused
leaves are identified once, from the function's trace, and omitted from every call.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from service.device.memory import Device
from service.device.native.library import register_native_calls


@dataclass(frozen=True)
class Program:
    """A function of constants, state and inputs to the new state and outputs, at one set of shapes.

    Each of the four is a pytree. The new state has the structure and sharding of the old one and reuses its memory. On
    several devices, the shapes of constants and state carry shardings.
    """

    name: str
    function: Callable[[Any, Any, Any], tuple[Any, Any]]
    constants: Any = ()  # a pytree of jax.ShapeDtypeStruct, like `state` and `inputs`
    state: Any = ()
    inputs: Any = ()
    # Shardings of inputs and outputs, as prefixes of their pytrees; None on one device.
    inputs_sharding: Any = None
    outputs_sharding: Any = None


@dataclass(frozen=True)
class Executable:
    """A compiled program, and the indices of the leaves of its constants and state that it uses."""

    compiled: jax.stages.Compiled
    constant_leaves: tuple[int, ...]
    read_leaves: tuple[int, ...]  # of the state: only read
    state_leaves: tuple[int, ...]  # of the state: replaced

    def __call__(self, constants: Sequence[jax.Array], state: list[jax.Array], inputs: Any) -> Any:
        """Dispatch the program, write the new leaves to `state`, and return the outputs without waiting for the device.

        Args:
            constants: all leaves of the constants.
            state: all leaves of the state; the ones that the program replaces are donated.
            inputs: the pytree of the program's inputs.
        """
        changed, outputs = self.compiled(
            [constants[i] for i in self.constant_leaves],
            [state[i] for i in self.read_leaves],
            [state[i] for i in self.state_leaves],
            inputs,
        )
        for i, leaf in zip(self.state_leaves, changed, strict=True):
            state[i] = leaf
        return outputs

    def serialize(self) -> bytes:
        """Return a pickle that includes the native code."""
        return pickle.dumps((serialize(self.compiled), self.constant_leaves, self.read_leaves, self.state_leaves))


def load_executable(data: bytes, devices: Sequence[Device]) -> Executable:
    """Load an executable onto its devices. The bytes can run any code, so they must come from a trusted source."""
    if devices[0].platform == "cpu":
        register_native_calls()
    (payload, in_tree, out_tree), *leaves = pickle.loads(data)
    compiled = deserialize_and_load(payload, in_tree, out_tree, execution_devices=devices)  # pyright: ignore[reportArgumentType]
    return Executable(compiled, *leaves)
