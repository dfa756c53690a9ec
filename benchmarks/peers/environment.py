"""Python environments of the peers: named by a variable, made under `.cache/bench`, or absent with a reason."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
INSTALL_TIMEOUT_S = 1800  # llama.cpp is compiled for this machine


class PeerAbsent(Exception):
    """A peer cannot be measured on this machine; the message gives the reason."""


@dataclass(frozen=True)
class Environment:
    """An environment with the packages of a peer."""

    variable: str  # may name the interpreter of an existing environment
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()  # of `uv pip install`
    build: dict[str, str] = field(default_factory=dict)  # environment variables for the installation

    def python(self, folder: Path) -> Path:
        """Return the interpreter; make the environment in `folder` if the variable is not set.

        Raises:
            PeerAbsent: the environment does not exist and cannot be made.
        """
        if given := os.environ.get(self.variable):
            if not Path(given).exists():
                raise PeerAbsent(f"{self.variable} names {given}, which does not exist")
            return Path(given)
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            self._make(folder, python)
            (folder / "complete").touch()
        return python

    def _make(self, folder: Path, python: Path) -> None:
        uv = str(UV) if UV.exists() else shutil.which("uv")
        if uv is None:
            raise PeerAbsent(f"uv is not installed; set {self.variable} to a Python with {', '.join(self.packages)}")
        shutil.rmtree(folder, ignore_errors=True)
        install = ["pip", "install", "--python", str(python), *self.options, *self.packages]
        for arguments in (["venv", "--python", "3.12", str(folder)], install):
            try:
                done = subprocess.run(
                    [uv, *arguments],
                    env=os.environ | self.build,
                    timeout=INSTALL_TIMEOUT_S,
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                reason = f"installing {', '.join(self.packages)} took longer than {INSTALL_TIMEOUT_S} s"
                raise PeerAbsent(reason) from error
            if done.returncode != 0:
                sys.stderr.write(done.stderr)
                reason = done.stderr.strip().splitlines()[-1].strip()
                raise PeerAbsent(f"installing {', '.join(self.packages)} failed: {reason}")


LLAMACPP = Environment(
    variable="LEVSERVE_BENCH_LLAMACPP_PYTHON",
    packages=("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy>=2"),
    options=("--no-binary", "llama-cpp-python"),
    build={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
)
TRANSFORMERS = Environment(
    variable="LEVSERVE_BENCH_TRANSFORMERS_PYTHON",
    packages=("torch==2.13.0", "transformers==5.12.1", "numpy>=2"),
    options=("--torch-backend", "cpu"),
)
SENTENCE_TRANSFORMERS = Environment(
    variable="LEVSERVE_BENCH_SENTENCE_TRANSFORMERS_PYTHON",
    packages=("torch==2.13.0", "sentence-transformers==6.2.0", "transformers==5.12.1", "numpy>=2"),
    options=("--torch-backend", "cpu"),
)
ONNXRUNTIME = Environment(
    variable="LEVSERVE_BENCH_ONNXRUNTIME_PYTHON",
    packages=("torch==2.13.0", "transformers==5.12.1", "onnx==1.23.2", "onnxruntime==1.32.0", "numpy>=2"),
    options=("--torch-backend", "cpu"),
)
FASTER_WHISPER = Environment(
    variable="LEVSERVE_BENCH_FASTER_WHISPER_PYTHON",
    packages=("faster-whisper==1.2.1", "ctranslate2==4.8.5", "av<16", "numpy>=2"),
)
WHISPERCPP = Environment(
    variable="LEVSERVE_BENCH_WHISPERCPP_PYTHON",
    packages=("pywhispercpp==1.5.1", "numpy>=2"),
)
RUNAI = Environment(
    variable="LEVSERVE_BENCH_RUNAI_PYTHON",
    packages=("runai-model-streamer[gcs]==0.17.0", "torch==2.13.0", "numpy>=2"),
    options=("--torch-backend", "cpu"),
)
