"""Executables that take only the arrays that they use.

The arguments of a step are hundreds of arrays: weights, and state that stays on the device. Passing one costs a few
microseconds, used or not, and an unused state array would be both an argument and a result. So the leaves that a
function does not use are found once, in its trace, and left out of every call.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from service.device.memory import Device


@dataclass(frozen=True)
class Program:
    """A function of constants, state and inputs to the new state and outputs, at one set of shapes.

    Each of the four is a pytree. The new state has the structure and sharding of the old one, and reuses its memory. On
    several devices the shapes of constants and state have shardings.
    """

    name: str
    function: Callable[[Any, Any, Any], tuple[Any, Any]]
    constants: Any = ()  # of jax.ShapeDtypeStruct, as are the other two
    state: Any = ()
    inputs: Any = ()
    # Shardings of inputs and outputs, as prefixes of their pytrees; None on one device.
    inputs_sharding: Any = None
    outputs_sharding: Any = None


@dataclass(frozen=True)
class Executable:
    """A compiled program, and the indices of the leaves that it takes of its constants and its state."""

    compiled: jax.stages.Compiled
    constant_leaves: tuple[int, ...]
    read_leaves: tuple[int, ...]  # of the state: only read
    state_leaves: tuple[int, ...]  # of the state: replaced

    @cached_property
    def reach(self) -> int:
        """The number of leaves of the state, from the first on, that must exist."""
        return 1 + max((*self.read_leaves, *self.state_leaves), default=-1)

    def __call__(self, constants: Sequence[jax.Array], state: list[jax.Array], inputs: Any) -> Any:
        """Start the program, put the new leaves into `state`, and return the outputs; does not wait for the device.

        Args:
            constants: all leaves of the constants.
            state: the leaves of the state; those that the program replaces are donated to it.
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
        """Return a pickle, native code included."""
        return pickle.dumps((serialize(self.compiled), self.constant_leaves, self.read_leaves, self.state_leaves))


def load_executable(data: bytes, devices: Sequence[Device]) -> Executable:
    """Load one executable onto its devices. The bytes run as code, so they must come from a trusted source."""
    (payload, in_tree, out_tree), *leaves = pickle.loads(data)
    compiled = deserialize_and_load(payload, in_tree, out_tree, execution_devices=devices)  # pyright: ignore[reportArgumentType]
    return Executable(compiled, *leaves)


def compile_program(program: Program) -> Executable:
    """Trace a program, leave out the leaves that it does not use, and compile it."""
    from jax.extend.core import jaxpr_as_fun  # imported here, because a start that finds its bundle does not need it

    traced = jax.jit(program.function).trace(program.constants, program.state, program.inputs)
    jaxpr = traced.jaxpr.jaxpr
    constants, state = jax.tree.leaves(program.constants), jax.tree.leaves(program.state)
    num_constants, num_state = len(constants), len(state)
    _, output_tree = jax.tree.structure(traced.out_info).children()
    state_in = jaxpr.invars[num_constants : num_constants + num_state]
    state_out = jaxpr.outvars[:num_state]
    used = {id(var) for eqn in jaxpr.eqns for var in eqn.invars} | {id(var) for var in jaxpr.outvars[num_state:]}
    constant_leaves = tuple(i for i in range(num_constants) if id(jaxpr.invars[i]) in used)
    state_leaves = tuple(i for i in range(num_state) if state_out[i] is not state_in[i])
    read_leaves = tuple(i for i in range(num_state) if state_out[i] is state_in[i] and id(state_in[i]) in used)

    def run(
        constants: list[jax.Array], read: list[jax.Array], changed: list[jax.Array], inputs: Any
    ) -> tuple[list[jax.Array], Any]:
        arguments: list[Any] = [None] * (num_constants + num_state)  # those that stay None are unused
        for i, leaf in zip(constant_leaves, constants, strict=True):
            arguments[i] = leaf
        for i, leaf in zip((*read_leaves, *state_leaves), (*read, *changed), strict=True):
            arguments[num_constants + i] = leaf
        results = jaxpr_as_fun(traced.jaxpr)(*arguments, *jax.tree.leaves(inputs))
        return [results[i] for i in state_leaves], jax.tree.unflatten(output_tree, results[num_state:])

    run.__name__ = program.name.replace("-", "_")  # the name in profiles
    taken, read, changed = (
        [leaves[i] for i in indices]
        for leaves, indices in ((constants, constant_leaves), (state, read_leaves), (state, state_leaves))
    )
    state_shardings = [leaf.sharding for leaf in changed]
    jitted = jax.jit(
        run,
        donate_argnums=2,
        in_shardings=(*([leaf.sharding for leaf in part] for part in (taken, read, changed)), program.inputs_sharding),
        out_shardings=(state_shardings, program.outputs_sharding),
    )
    compiled = jitted.lower(taken, read, changed, program.inputs).compile()
    return Executable(compiled, constant_leaves, read_leaves, state_leaves)
