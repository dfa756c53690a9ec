"""The build hook: which compilers make the library, and what a package is without one."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.build_native import LIBRARY, CompileError, compile_library, has_native_code

ROOT = Path(__file__).parents[3]
COMPILERS = [f"g++-{version}" for version in range(10, 16)] + [f"clang++-{version}" for version in range(14, 20)]

pytestmark = pytest.mark.skipif(not has_native_code(), reason="there is no native code for this machine")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files from which a package is built, with a library that was compiled before."""
    for name in (".gitignore", "pyproject.toml", "README.md", "scripts/build_native.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "service/device", tmp_path / "service/device", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "service/__init__.py").touch()
    (tmp_path / LIBRARY).write_bytes(b"of the machine on which this was packed")
    return tmp_path


def build(project: Path, target: str, **variables: str) -> tuple[int, str, list[str]]:
    """Build a package; return the exit status, the messages and the names of its files."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    names: list[str] = []
    for package in (project / "dist").glob("*"):
        if package.suffix == ".whl":
            names += [package.name, *zipfile.ZipFile(package).namelist()]
        else:
            with tarfile.open(package) as archive:
                names += archive.getnames()
    return done.returncode, done.stdout + done.stderr, names


@pytest.mark.grid
@pytest.mark.parametrize("compiler", [name for name in COMPILERS if shutil.which(name)])
def test_compilers_make_the_library_without_a_warning(project: Path, compiler: str):
    compile_library(project, compiler, "-Werror")
    assert (project / LIBRARY).read_bytes().startswith(b"\x7fELF")


def test_a_compiler_that_fails_is_named(project: Path):
    with pytest.raises(CompileError, match="false"):
        compile_library(project, "false")


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_that_works_the_package_is_complete_unless_the_library_is_demanded(project, compiler):
    nothing = {"CXX": compiler, "PATH": str(Path(shutil.which("false")).parent) if compiler == "false" else "/nowhere"}
    status, messages, names = build(project, "wheel", **nothing)
    assert (status, "XLA computes all products on a CPU" in messages) == (0, True)
    assert not any(name.endswith(".so") for name in names)
    assert any(name.endswith("none-any.whl") for name in names)
    assert not (project / LIBRARY).exists()
    status, messages, _ = build(project, "wheel", **nothing, LEVSERVE_NATIVE="require")
    assert (status != 0, "CompileError" in messages) == (True, True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_sources_that_do_not_compile_leave_no_library_of_older_ones(project):
    for source in (project / "service/device/native").glob("*.cc"):
        source.write_text("no C++;")
    status, messages, names = build(project, "wheel", CXX="g++")
    assert (status, "g++ does not compile the native code" in messages) == (0, True)
    assert not any(name.endswith(".so") for name in names)
    assert not (project / LIBRARY).exists()


def test_a_source_distribution_has_nothing_of_the_machine_that_made_it(project: Path):
    status, _, names = build(project, "sdist")
    assert status == 0
    assert any(name.endswith("native/linear.cc") for name in names)
    assert not any(name.endswith(".so") for name in names)
