"""Compile the products in C++ when Levserve is built or installed, if there is a compiler.

hatchling runs this as its build hook. Without a compiler the service is complete, and XLA computes all products.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "service/device/native"
LIBRARY = f"{SOURCES}/products.so"
MACHINES = ("x86_64", "AMD64")
FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-array-bounds", "-Wno-maybe-uninitialized"),
)
INSTRUCTIONS = {
    "avx2.cc": ("-mavx2", "-mfma"),
    "avx512.cc": ("-mfma", *(f"-mavx512{name}" for name in ("f", "bw", "dq", "vl", "vnni"))),
}


class NativeBuildHook(BuildHookInterface):
    """Compiles the library beside its sources, where an editable installation looks for it too."""

    @override
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have a wheel name the platform that it is for."""
        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning("No C++ compiler for x86-64 was found: products on a CPU are left to XLA.")
            return
        compile_library(Path(self.root), compiler)
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def find_compiler() -> str | None:
    """Return the C++ compiler, the environment's CXX or one on PATH; None if there is none for this machine."""
    names = (os.environ.get("CXX"), "g++", "c++")
    return next((name for name in names if name and shutil.which(name)), None) if _is_served() else None


def compile_library(root: Path, compiler: str) -> None:
    """Compile the sources below `root` in parallel, and put the library in their folder in one step."""
    sources = sorted((root / SOURCES).glob("*.cc"))
    with tempfile.TemporaryDirectory(dir=root / SOURCES) as folder:
        objects = [str(Path(folder, f"{source.stem}.o")) for source in sources]
        commands = [
            [compiler, *FLAGS, *INSTRUCTIONS.get(source.name, ()), "-c", str(source), "-o", made]
            for source, made in zip(sources, objects, strict=True)
        ]
        _run_all(commands)
        linked = str(Path(folder, "products.so"))
        _run_all([[compiler, "-shared", "-static-libstdc++", "-static-libgcc", "-s", *objects, "-o", linked]])
        Path(linked).replace(root / LIBRARY)


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    running = [subprocess.Popen(command) for command in commands]
    failed = [process.args for process in running if process.wait() != 0]
    if failed:
        raise RuntimeError("the products in C++ do not compile; the compiler's messages are above")


def _is_served() -> bool:
    return platform.system() == "Linux" and platform.machine() in MACHINES
