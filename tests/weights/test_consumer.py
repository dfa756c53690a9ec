"""Where the bytes of a chunk are read to: into the weights that hold them as they are, or into a buffer."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from service.models.weight_spec import TensorSource, WeightSpec
from service.observability.progress import Progress
from service.storage.local import LocalSource
from service.storage.location import LocalLocation
from service.storage.objects import Chunk
from service.weights.assembly import Assembly
from service.weights.consumer import TensorConsumer
from service.weights.headers import read_headers
from service.weights.packed.layers import PackedWeights
from service.weights.staging import StagingMemory

BUFFER = np.zeros(4096, np.uint8)


def plain(name: str, size: int) -> WeightSpec:
    return WeightSpec(name, ("a",), (size,), (TensorSource(name, (size,), (size,)),))


def pieces_of(folder: Path, content: bytes, specs: tuple[WeightSpec, ...]):
    """Cut all of a file after its header, and read it as a fetch does; return the pieces and the weights."""
    folder.mkdir(exist_ok=True)
    (folder / "a.safetensors").write_bytes(content)
    source = LocalSource(LocalLocation(folder))
    objects = source.list()
    with source.open_files(objects, objects, cache=None, progress=Progress()) as opened:
        [header] = read_headers(opened.files, opened.budget)
    assembly = Assembly(specs, None)
    consumer = TensorConsumer(source.uri, header.entries, assembly, PackedWeights(assembly), StagingMemory(2**20))
    pieces = []
    for piece, data in consumer.pieces(Chunk(len(header.data), len(content)), BUFFER):
        data[:] = np.frombuffer(content[piece.start : piece.end], np.uint8)
        consumer.consume(piece, data)
        pieces.append((piece.num_bytes, not np.shares_memory(data, BUFFER)))
    return pieces, assembly.weights()


def test_what_a_weight_holds_as_it_is_stored_is_read_into_the_weight_and_the_rest_into_the_buffer(tmp_path: Path):
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(size).astype(np.float32) for name, size in (("a", 100), ("b", 50), ("d", 7))}
    tensors["c"] = rng.standard_normal(60).astype(np.float16)  # float32 in the model
    specs = (plain("a", 100), plain("c", 60), plain("d", 7))  # no weight is made of b
    pieces, weights = pieces_of(tmp_path, save(tensors), specs)
    assert sorted(pieces) == sorted([(400, True), (200, False), (28, True), (120, False)])
    for spec in specs:
        np.testing.assert_array_equal(weights[spec.name], tensors[spec.name].astype(np.float32))
