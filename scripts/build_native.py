"""Compile the custom calls in C++ when Levserve is built or installed, if there is a compiler that can.

hatchling runs this as its build hook. Without the library the service is complete, and XLA computes all products. A
build that fails warns, and leaves no library of an earlier one. With `LEVSERVE_NATIVE=require`, as in images and in CI,
it ends the installation on machines that have native code.
"""

import os
import platform
import runpy
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "service/device/native"
LIBRARY = f"{SOURCES}/native.so"
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Wno-array-bounds", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"),
)
# The C library alone: any glibc since 2.14 will do, whatever the compiler's C++ library requires.
LINK_FLAGS = ("-shared", "-s", "-nodefaultlibs", "-Wl,--exclude-libs,ALL", "-Wl,--no-undefined")
LINK_LIBRARIES = ("-lc", "-lgcc")
AVX2 = ("-mavx2", "-mfma")
AVX512 = ("-mfma", *(f"-mavx512{name}" for name in ("f", "bw", "dq", "vl", "vnni")))
# The flags of sources that are compiled for some processors of a machine.
INSTRUCTIONS = {
    "x86_64": {
        **{"avx2.cc": AVX2, "attention_avx2.cc": AVX2, "states_avx2.cc": AVX2},
        **{"avx512.cc": AVX512, "attention_avx512.cc": AVX512, "states_avx512.cc": AVX512},
        "avx512_bf16.cc": (*AVX512, "-mavx512bf16"),
    },
    "aarch64": {"neon_dotprod.cc": ("-march=armv8.2-a+dotprod",)},
}


class NativeBuildHook(BuildHookInterface):
    """Compiles the library beside its sources, where an editable installation looks for it too."""

    @override
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have a wheel name the platform that it is for; a source distribution contains sources alone.

        Raises:
            CompileError: the variable demands the library, and it cannot be compiled.
        """
        if self.target_name != "wheel":
            return
        if not has_native_code():
            machine = f"{platform.system()} on {platform.machine()}"
            self.app.display_warning(f"There is no native code for {machine}: XLA computes all products on a CPU.")
            return
        try:
            compile_library(Path(self.root), find_compiler())
        except CompileError as error:
            if os.environ.get("LEVSERVE_NATIVE") == "require":
                raise
            (Path(self.root) / LIBRARY).unlink(missing_ok=True)  # an older one, which no longer fits the sources
            advice = "XLA computes all products on a CPU. Install g++ or clang++ and reinstall."
            self.app.display_warning(f"{error} {advice}")
            return
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


class CompileError(Exception):
    """There is no compiler, or it fails."""


def has_native_code() -> bool:
    """Return whether there is native code for this machine."""
    return platform.system() == "Linux" and platform.machine() in INSTRUCTIONS


def find_compiler() -> str:
    """Return the C++ compiler: the environment's CXX or one on PATH.

    Raises:
        CompileError: there is none.
    """
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    raise CompileError("No C++ compiler was found (CXX, g++, c++, clang++).")


def compile_library(root: Path, compiler: str, *extra_flags: str, machine: str | None = None) -> None:
    """Compile the sources below `root` in parallel, and put the library in their folder in one step.

    Args:
        root: the project's folder.
        compiler: a command.
        extra_flags: more of the compiler's flags.
        machine: what the compiler compiles for; None for this machine.

    Raises:
        CompileError: the compiler fails.
    """
    folder = root / SOURCES
    digest = runpy.run_path(str(folder / "sources.py"))["digest"](folder)
    instructions = INSTRUCTIONS[machine or platform.machine()]
    flags = (*FLAGS, f'-DLEVSERVE_SOURCES="{digest}"', *extra_flags)
    sources = sorted(folder.glob("*.cc"))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        objects = [str(Path(temporary, f"{source.stem}.o")) for source in sources]
        commands = [
            [compiler, *flags, *instructions.get(source.name, ()), "-c", str(source), "-o", made]
            for source, made in zip(sources, objects, strict=True)
        ]
        _run_all(commands)
        linked = str(Path(temporary, "native.so"))
        _run_all([[compiler, *LINK_FLAGS, *objects, *LINK_LIBRARIES, "-o", linked]])
        Path(linked).replace(root / LIBRARY)


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    running = [subprocess.Popen(command) for command in commands]
    statuses = [process.wait() for process in running]
    if any(statuses):
        raise CompileError(f"{commands[0][0]} does not compile the native code; its messages are above.")
