"""Assembly of weights on the host from runs of tensor elements, in any order; complete weights move to the device.

If the device uses the host's memory, the weights stay where they were assembled: a single allocation holds all of them,
and the device uses it without a copy. That needs no jax, so it may start before jax is imported.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from service.errors import MalformedCheckpoint, UnquantizableWeights
from service.models.quantization import zero_name
from service.models.weight_spec import WeightSpec
from service.weights.cast import cast_into
from service.weights.headers import check_tensors
from service.weights.interleaved import interleave, interleaved_names
from service.weights.low_rank import Update
from service.weights.populated import populated_memory
from service.weights.quantization import RowQuantizer, UnquantizableRow, checked_scales

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

# XLA uses a host array without a copy if it is aligned to this.
ALIGNMENT_BYTES = 64
# A matrix product reads a weight and its input at the same time. If their addresses agree in these low bits, as those
# of arrays at round addresses do, both appear to use the same cache bank: a step of one token through 135M parameters
# takes 9.5 instead of 8.5 ms on a Zen 5. Measured over offsets from 0 to 2,048.
BANKS_BYTES = 4 * ALIGNMENT_BYTES
BANK_OFFSET_BYTES = 3 * ALIGNMENT_BYTES

NUM_THREADS = 4  # numpy copies and casts without the GIL, so a few threads overlap disk and memory


def _new_memory(num_bytes: int) -> np.ndarray:
    return np.empty(num_bytes, np.uint8)


class Assembly:
    """The weights of one model while they are being loaded; writable from several threads."""

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        mesh: "DeviceMesh | None",
        updates: Mapping[str, Update] | None = None,
        *,
        on_placed: Callable[[np.ndarray], None] = lambda array: None,
    ) -> None:
        """Allocate all weights if they stay on the host; otherwise `reserve` allocates them one by one.

        Args:
            specs: the weights.
            mesh: the devices to place weights on, by the names of their axes; None leaves them on the host.
            updates: what is added to tensors before they are converted, by their names.
            on_placed: called, from any thread, with the host array of a weight that is on the device.
        """
        self.specs, self._mesh = specs, mesh
        self._updates, self._on_placed = updates or {}, on_placed
        self._lock = threading.Lock()
        self._by_name = {spec.name: spec for spec in specs}
        self._users: dict[str, list[tuple[WeightSpec, int]]] = {}  # by tensor: weights and the index of their source
        for spec in specs:
            for index, source in enumerate(() if spec.is_row_scale else spec.sources):
                self._users.setdefault(source.name, []).append((spec, index))
        self._num_missing = {spec.name: math.prod(spec.shape) for spec in specs}  # elements, by weight
        self._quantizers: dict[tuple[str, int], RowQuantizer] = {}  # by weight and the index of its source
        self._scales = {spec.scale for spec in specs}
        self._interleaved = interleaved_names(self._by_name) if mesh is not None and mesh.is_host else frozenset()
        self._faults: dict[str, tuple[str, str]] = {}  # by the name of a source: a tensor of it and the reason
        self._arrays: dict[str, np.ndarray] = {}
        self._placed: dict[str, jax.Array] = {}
        if mesh is None:
            self._arrays = _allocate_together(specs)

    def uses(self, tensor: str) -> bool:
        return tensor in self._users

    def lacks(self, tensors: Sequence[str]) -> bool:
        """Return whether a weight that these tensors are part of has no memory yet."""
        with self._lock:
            return any(True for _ in self._without_memory(tensors))

    def reserve(self, tensors: Sequence[str], allocate: Callable[[int], np.ndarray] = _new_memory) -> None:
        """Allocate the weights that these tensors are part of; only one thread may reserve at a time.

        Args:
            tensors: their names.
            allocate: returns uint8 of shape [n], aligned to `ALIGNMENT_BYTES` or not; it may wait.
        """
        with self._lock:
            missing = list(self._without_memory(tensors))
        for spec in missing:
            if spec.name not in self._arrays:
                array = allocate(spec.num_bytes).view(spec.dtype).reshape(spec.shape)
                with self._lock:
                    self._arrays[spec.name] = array

    def _without_memory(self, tensors: Sequence[str]) -> Iterator[WeightSpec]:
        for weight, _ in (user for name in tensors for user in self._users.get(name, ())):
            if weight.name not in self._arrays and self._num_missing[weight.name]:
                yield from self._with_row_scales(weight)

    def place(self, tensor: str, first: int, number: int, dtype: np.dtype) -> np.ndarray | None:
        """Return the memory of a weight, contiguous uint8, that elements of a tensor can be read into directly.

        Elements read into it are then passed to `write` from there. Returns None if the elements have to be converted,
        rearranged or written to several weights.
        """
        [(spec, index), *others] = self._users[tensor]
        array = self._arrays.get(spec.name)
        is_part = bool(others) or spec.sources[index].rows is not None
        if (
            tensor in self._updates
            or is_part
            or array is None
            or array.dtype != dtype
            or spec.scale is not None
            or spec.name in self._scales
        ):
            return None
        return TensorPlace(spec, index, array).memory(first, number)

    def write(self, tensor: str, first: int, values: np.ndarray) -> None:
        """Write elements of a tensor; the thread that completes a weight places it on the device.

        Args:
            tensor: the tensor's name, which is ignored if no weight uses it.
            first: the index of the first element in storage order.
            values: shape [n], of the stored type; copied.
        """
        if tensor in self._updates:
            values = self._updates[tensor].applied_to(first, values)
        for spec, index in self._users.get(tensor, ()):
            source = spec.sources[index]
            begin, end = source.elements
            part = values[max(begin - first, 0) : max(end - first, 0)]
            if not len(part):
                continue
            if spec.is_finite and not np.isfinite(part.astype(np.float32)).all():
                self.add_fault(tensor, tensor, "has a value that is NaN or infinite. Repair the checkpoint.")
            try:
                self._writer(spec, index)(max(first, begin) - begin, part)
            except UnquantizableRow as error:
                # The checksum is not known yet: if the bytes are corrupt, they are fetched again. See `check`.
                self.add_fault(tensor, tensor, str(error))
            with self._lock:
                self._num_missing[spec.name] -= len(part) * source.copies
                is_whole = self._num_missing[spec.name] == 0
            if is_whole and self._mesh is not None:
                for complete in self._with_row_scales(spec):
                    self._place(complete.name, self._mesh)

    def add_fault(self, source: str, tensor: str, reason: str) -> None:
        """Note why a tensor is invalid, if its bytes are not: `check` raises that."""
        self._faults.setdefault(source, (tensor, reason))

    def check(self, uri: str, tensors: Collection[str]) -> None:
        """Check that sources whose tensors are all among these, whose bytes were valid, could be read.

        Raises:
            MalformedCheckpoint: a tensor that must be finite is not.
            UnquantizableWeights: a tensor contradicts the configuration, a row could not be quantized, or a scale is
                not a positive number.
        """
        for spec, source in ((each, source) for each in self.specs for source in each.sources):
            if source.name in self._faults and all(part.name in tensors for part in source.stored):
                fault = MalformedCheckpoint if spec.is_finite else UnquantizableWeights
                raise fault(uri, *self._faults[source.name])

    def weights(self) -> "dict[str, np.ndarray | jax.Array]":
        """Return the complete weights in the order of their specs, on the device if there is a mesh."""
        arrays = self._arrays if self._mesh is None else self._placed
        return {name: arrays[name] for name in self._by_name}

    def _with_row_scales(self, spec: WeightSpec) -> tuple[WeightSpec, ...]:
        """Return a weight's spec, and those of its scales and zero points if quantizing the weight computes them."""
        of_rows = [] if spec.scale is None else [spec.scale, zero_name(spec.name)]
        found = (self._by_name.get(name) for name in of_rows)
        return (spec, *(each for each in found if each is not None and each.is_row_scale))

    def _writer(self, spec: WeightSpec, index: int) -> Callable[[int, np.ndarray], None]:
        place = TensorPlace(spec, index, self._arrays[spec.name])
        _, *made = self._with_row_scales(spec)
        if not made:
            return place.write if spec.name not in self._scales else checked_scales(place.write)
        scales = [TensorPlace(each, index, self._arrays[each.name]).write for each in made]
        row_len = math.prod(spec.shape[-spec.num_in_axes :])
        with self._lock:
            new = RowQuantizer(row_len, place.write, *scales, dtype=spec.dtype)
            return self._quantizers.setdefault((spec.name, index), new).write

    def _place(self, name: str, mesh: "DeviceMesh") -> None:
        with self._lock:
            array = self._arrays.pop(name)
            for index in range(len(self._by_name[name].sources)):
                self._quantizers.pop((name, index), None)  # it refers to the array
        laid_out = interleave(array) if name in self._interleaved else array
        # The transfer must be complete before the host memory counts as released.
        placed = mesh.put(laid_out, self._by_name[name].axes).block_until_ready()
        with self._lock:
            self._placed[name] = placed
        self._on_placed(array)


class TensorPlace:
    """The part of a weight's host array that one tensor fills."""

    def __init__(self, spec: WeightSpec, index: int, weight: np.ndarray) -> None:
        """Locate the part of `weight`, of the shape of `spec`, that source number `index` fills."""
        source = spec.sources[index]
        axis = spec.concat_axis
        inner = math.prod(spec.shape[axis + 1 :])
        begin = sum(math.prod(other.view[axis:]) for other in spec.sources[:index])
        width = math.prod(source.view[axis:])
        # Shape [axes before the concatenated one, the concatenated axis and the axes after it].
        part = weight.reshape(-1, inner * spec.shape[axis])[:, begin : begin + width]
        # Copies alternate along the last axis before the concatenated one.
        self.copies = [part[copy :: source.copies] for copy in range(source.copies)]

    def memory(self, first: int, number: int) -> np.ndarray | None:
        """Return the memory of elements in storage order as uint8, or None if it is not contiguous."""
        [part, *others] = self.copies
        if others or not part.flags.c_contiguous:
            return None
        return part.reshape(-1)[first : first + number].view(np.uint8)

    def write(self, first: int, values: np.ndarray) -> None:
        """Copy elements to their place and cast them, unless they were read directly into `memory`.

        Args:
            first: the index of the first element in storage order.
            values: shape [n], of the stored type.
        """
        for copy in self.copies:
            _write(copy, first, values)


def assemble_weights(
    specs: Iterable[WeightSpec],
    tensors: Mapping[str, np.ndarray],
    *,
    mesh: "DeviceMesh | None",
    uri: str = "memory",
    updates: Mapping[str, Update] | None = None,
) -> "dict[str, np.ndarray | jax.Array]":
    """Assemble all weights from tensors in memory, and place them if there is a mesh.

    Args:
        specs: the weights.
        tensors: the checkpoint's tensors by name, each read once.
        mesh: the devices to place weights on, by the names of their axes; None leaves them on the host.
        uri: the checkpoint's address, for error messages.
        updates: what is added to tensors before they are converted, by their names.

    Raises:
        MalformedCheckpoint: the tensors do not match the model.
        UnquantizableWeights: 8 bits cannot represent a row of a weight.
    """
    all_specs = tuple(specs)
    check_tensors(uri, all_specs, {name: tensor.shape for name, tensor in tensors.items()})
    assembly = Assembly(all_specs, mesh, updates)
    # A tensor that two weights share is read once and written to both.
    names = {source.name: source.is_transposed for spec in all_specs for source in spec.sources}
    reserving = threading.Lock()

    def write_one(name: str) -> None:
        with reserving:
            assembly.reserve([name])
        tensor = np.swapaxes(tensors[name], -1, -2) if names[name] else tensors[name]
        assembly.write(name, 0, np.ascontiguousarray(tensor).reshape(-1))

    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="weights") as pool:
        list(pool.map(write_one, names))
    assembly.check(uri, names)
    return assembly.weights()


def host_bytes(specs: Sequence[WeightSpec]) -> int:
    """Return the size of the single host allocation for all weights."""
    return BANK_OFFSET_BYTES + sum(_padded_bytes(spec) for spec in specs)


def _allocate_together(specs: Sequence[WeightSpec]) -> dict[str, np.ndarray]:
    # One large allocation gets huge pages and takes a third of the page faults of many small ones.
    left, arrays = populated_memory(host_bytes(specs))[BANK_OFFSET_BYTES:], {}
    for spec in specs:
        arrays[spec.name] = left[: spec.num_bytes].view(spec.dtype).reshape(spec.shape)
        left = left[_padded_bytes(spec) :]
    return arrays


def _padded_bytes(spec: WeightSpec) -> int:
    return -(-spec.num_bytes // BANKS_BYTES) * BANKS_BYTES


def _write(part: np.ndarray, first: int, values: np.ndarray) -> None:
    width = part.shape[1]
    if np.may_share_memory(part, values):  # read directly into place
        return
    if part.flags.c_contiguous:
        cast_into(part.reshape(-1)[first : first + len(values)], values)
        return
    row, column = divmod(first, width)
    while len(values):
        # The rest of a partial row, as many whole rows as possible, or the start of the last row.
        if column == 0 and len(values) >= width:
            num_rows = len(values) // width
            cast_into(part[row : row + num_rows], values[: num_rows * width].reshape(num_rows, width))
            row, values = row + num_rows, values[num_rows * width :]
        else:
            taken = min(width - column, len(values))
            cast_into(part[row, column : column + taken], values[:taken])
            row, column, values = row + 1, 0, values[taken:]
