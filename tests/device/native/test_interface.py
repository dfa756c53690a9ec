"""The custom calls, made as XLA makes them: `caller.cc` is compiled against the header that jaxlib ships."""

import platform
import shutil
import subprocess
from pathlib import Path

import jaxlib
import pytest

from scripts.build_native import FLAGS, INSTRUCTIONS

SOURCES = Path(__file__).parents[3] / "service/device/native"
HEADERS = Path(jaxlib.__file__).parent / "include"

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None, reason="no C++ compiler for x86-64"
)


def run_caller(folder: Path, *flags: str) -> str:
    objects = []
    for source in sorted(SOURCES.glob("*.cc")):
        objects.append(str(folder / f"{source.stem}.o"))
        command = ["g++", *FLAGS, '-DLEVSERVE_SOURCES=""', *INSTRUCTIONS.get(source.name, ()), *flags]
        subprocess.run([*command, "-c", str(source), "-o", objects[-1]], check=True)
    caller = str(folder / "caller")
    command = ["g++", "-std=c++20", "-O1", *flags, f"-I{SOURCES}", f"-isystem{HEADERS}", "-pthread"]
    subprocess.run([*command, str(Path(__file__).with_name("caller.cc")), *objects, "-o", caller], check=True)
    done = subprocess.run([caller], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_structures_are_those_of_jaxlibs_header_and_every_version_is_answered_with_one_that_xla_takes(tmp_path: Path):
    assert run_caller(tmp_path, "-O0") == "all is right\n"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizers: str):
    assert (
        run_caller(tmp_path, "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g") == "all is right\n"
    )
