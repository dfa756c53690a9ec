"""Start of each contender by name."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.contenders import Contender, HttpServer, Worker, free_port, levserve, service_environment
from benchmarks.peers.environment import LLAMACPP, TRANSFORMERS, PeerAbsent

OURS, ENGINE = "levserve", "engine"
# Levanter's server takes minutes where others take seconds, and is measured in fewer runs.
MAX_RUNS = {"levanter": 1, "levanter_32": 2}
NAMES = {
    OURS: "Levserve, over HTTP",
    ENGINE: "Levserve's engine, no HTTP",
    "llamacpp": "llama.cpp, no HTTP",
    "transformers": "transformers, no HTTP",
    "levanter": "Levanter's server, over HTTP",
    "levanter_32": "Levanter's server made for 32 sequences",
}
PEERS = ("llamacpp", "transformers", "levanter")
SERVING_PEERS = (*PEERS, "levanter_32")
# 32 sequences, as in the largest wave, and a context that fits the longest prompt of all measurements.
SETTINGS = {"MAX_NUM_SEQS": "32", "MAX_MODEL_LEN": "1024", "DTYPE": "float32"}


@dataclass(frozen=True)
class Site:
    """The files and settings of a measurement."""

    checkpoint: Path
    folder: Path  # for logs, caches and environments
    settings: Mapping[str, str]  # of Levserve


def start_contender(name: str, site: Site) -> Contender:
    """Start a contender and wait until it can answer.

    Raises:
        PeerAbsent: it cannot be measured on this machine.
    """
    starts: dict[str, Callable[[Site], Contender]] = {
        OURS: lambda site: levserve(site.checkpoint, site.folder, site.settings),
        ENGINE: _start_engine,
        "llamacpp": _start_llamacpp,
        "transformers": _start_transformers,
        "levanter": _start_levanter,
        "levanter_32": lambda site: _start_levanter(site, "32"),
    }
    if name in (OURS, ENGINE):
        return starts[name](site)
    try:
        return starts[name](site)
    except (OSError, RuntimeError) as error:
        raise PeerAbsent(f"it did not start: {error}") from error


def _start_engine(site: Site) -> Contender:
    environment = service_environment(site.checkpoint, site.folder, site.settings)
    return Worker([sys.executable, "-m", "benchmarks.engine_worker"], site.folder / "engine.log", environment)


def _start_llamacpp(site: Site) -> Contender:
    python = LLAMACPP.python(site.folder / "llamacpp")
    gguf = site.folder / f"{site.checkpoint.name}.gguf"
    command = [str(python), "-m", "benchmarks.peers.llamacpp", str(site.checkpoint), str(gguf)]
    return Worker(command, site.folder / "llamacpp.log")


def _start_transformers(site: Site) -> Contender:
    python = TRANSFORMERS.python(site.folder / "transformers")
    command = [str(python), "-m", "benchmarks.peers.transformers", str(site.checkpoint)]
    return Worker(command, site.folder / "transformers.log")


def _start_levanter(site: Site, *limits: str) -> Contender:
    port = free_port()
    tokenizer = Tokenizer.from_file(str(site.checkpoint / "tokenizer.json"))
    return HttpServer(
        [sys.executable, "-m", "benchmarks.peers.levanter", str(site.checkpoint), str(port), *limits],
        port,
        site.folder / f"levanter{'-'.join(('', *limits))}.log",
        model="levanter",
        ready_path="/health",
        as_prompt=tokenizer.decode,
    )
