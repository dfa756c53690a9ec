"""The custom calls, made as XLA makes them, on this machine and on an emulated Arm."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jaxlib
import pytest

from scripts.build_native import FLAGS, INSTRUCTIONS, LIBRARY, compile_library, has_native_code

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "service/device/native"
HEADERS = Path(jaxlib.__file__).parent / "include"
ARM = "aarch64"
ARM_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")

needs_compiler = pytest.mark.skipif(
    not has_native_code() or shutil.which("g++") is None, reason="no C++ compiler for this machine"
)
needs_emulator = pytest.mark.skipif(
    shutil.which(ARM_COMPILER) is None or shutil.which(EMULATOR[0]) is None,
    reason=f"no {ARM_COMPILER} (Debian's g++-aarch64-linux-gnu) or no {EMULATOR[0]} (qemu-user)",
)


def compile_caller(folder: Path, *flags: str, compiler: str = "g++", machine: str = platform.machine()) -> str:
    objects = []
    for source in sorted(SOURCES.glob("*.cc")):
        objects.append(str(folder / f"{source.stem}.o"))
        instructions = INSTRUCTIONS[machine].get(source.name, ())
        command = [compiler, *FLAGS, '-DLEVSERVE_SOURCES=""', *instructions, *flags]
        subprocess.run([*command, "-c", str(source), "-o", objects[-1]], check=True)
    return compile_test(folder, "caller.cc", *flags, "-Wl,--wrap=aligned_alloc", *objects, compiler=compiler)


def compile_test(folder: Path, name: str, *arguments: str, compiler: str = "g++") -> str:
    program = str(folder / Path(name).stem)
    command = [compiler, "-std=c++20", "-O1", f"-I{SOURCES}", f"-isystem{HEADERS}", "-pthread"]
    subprocess.run([*command, str(Path(__file__).with_name(name)), *arguments, "-o", program], check=True)
    return program


def run(*command: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@needs_compiler
@pytest.mark.grid
def test_structures_are_those_of_jaxlibs_header_and_every_version_is_answered_with_one_that_xla_takes(tmp_path: Path):
    assert run(compile_caller(tmp_path, "-O0")) == "all is right\n"


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizers: str):
    flags = ("-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g")
    assert run(compile_caller(tmp_path, *flags)) == "all is right\n"


@needs_emulator
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calls_on_an_emulated_arm_are_right(tmp_path: Path):
    caller = compile_caller(tmp_path, "-O2", compiler=ARM_COMPILER, machine=ARM)
    assert run(*EMULATOR, caller) == "all is right\n"


@needs_emulator
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("processor", "kernels"),
    [("max", ("native", "native_attention", "native_states", "adapters", "grouped")), ("cortex-a53", ("native",))],
    ids=["dotprod", "no dotprod"],
)
def test_kernels_on_an_emulated_arm_pass_their_tests(tmp_path: Path, processor: str, kernels: Sequence[str]):
    """The library as it is installed, in the tests of its kernels, but for those of this machine's instructions."""
    shutil.copytree(SOURCES, (tmp_path / LIBRARY).parent, ignore=shutil.ignore_patterns("*.so"))
    compile_library(tmp_path, ARM_COMPILER, "-Werror", machine=ARM)
    program = compile_test(tmp_path, "requested.cc", compiler=ARM_COMPILER)
    emulated = shlex.join([*EMULATOR, "-cpu", processor, program, str(tmp_path / LIBRARY)])
    tests = [f"tests/kernels/test_{name}.py" for name in kernels]
    of_this_machine = "instructions or several_threads or uses_them or in_place or refused or gpu or tpu"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.device.native.emulation", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-m", "not slow", "-k", f"not ({of_this_machine})", *tests]
    run(*command, LEVSERVE_EMULATED=emulated, PYTEST_ADDOPTS="", PYTEST_XDIST_WORKER="")
