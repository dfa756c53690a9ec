"""A bundle of two tiny executables, and a process that writes it over and over."""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from service.bundles.bundle import Bundle, make_bundle
from service.bundles.folder import BundleFolder
from service.bundles.key import BundleKey
from service.compile.aot import compile_programs
from service.compile.program import Program

KEY = BundleKey({"model": {"layers": 2}, "packages": {"jax": "1.2.3"}})
NAMES = ["double", "sum"]


def stateless(function):
    return lambda constants, state, x: (state, function(x))


def small_bundle(key: BundleKey = KEY) -> Bundle:
    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    functions = {"double": lambda x: x * 2, "sum": lambda x: x.sum()}
    programs = [Program(name, stateless(function), inputs=vector) for name, function in functions.items()]
    compiled = compile_programs(programs, num_threads=2)
    return make_bundle(
        key,
        {name: program.executable for name, program in compiled.items()},
        {name: program.seconds for name, program in compiled.items()},
        {"recipe": []},
    )


def big_files(fill: str) -> dict[str, bytes]:
    """Return the files of a bundle, named by their content as those of every bundle."""
    contents = {f"{index}-{fill}.executable": fill.encode() * 400_000 for index in range(20)}
    return contents | {"manifest.json": fill.encode()}


def write_for_ever(folder: Path, fill: str) -> None:
    place = BundleFolder(folder)
    while True:
        place.write("key", big_files(fill))
        place.discard("key")


if __name__ == "__main__":
    print("writing", time.time(), flush=True)
    write_for_ever(Path(sys.argv[1]), sys.argv[2])
