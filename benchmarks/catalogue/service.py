"""A service of a folder of models, all of one geometry and each with weights of its own, and requests to it."""

import asyncio
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import load_file, save_file

from benchmarks.checkpoint import Geometry, make_checkpoint, word_ids
from benchmarks.contenders import START_TIMEOUT_S, HttpServer, free_port
from benchmarks.load import Answer, Call, completion_body, send_all

KEY = "benchmark"


def make_models(folder: Path, geometry: Geometry, num_models: int) -> Path:
    """Write checkpoints `m0`, `m1`, … unless they exist, and return the folder of them.

    Their output weights are one another's with the rows in another order, so that their answers differ.
    """
    first = make_checkpoint(folder / "m0", geometry)
    for index in range(1, num_models):
        copy = folder / f"m{index}"
        if not (copy / "tokenizer_config.json").exists():
            tensors = load_file(first / "model.safetensors")
            embedding = tensors["model.embed_tokens.weight"]
            tensors["model.embed_tokens.weight"] = np.ascontiguousarray(np.roll(embedding, index, axis=0))
            copy.mkdir(parents=True, exist_ok=True)
            save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
                shutil.copy(first / name, copy / name)
    return folder


class CatalogueService(HttpServer):
    """Levserve over a folder of models."""

    def __init__(self, models: Path, folder: Path, settings: Mapping[str, str]) -> None:
        """Start it and wait until it answers; nothing is loaded unless MODELS says so."""
        port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._words = word_ids(models / "m0")
        environment = {
            "CATALOGUE_URI": str(models),
            "LOCAL_MODEL_CACHE": str(folder / "cache"),
            "ADMIN_API_KEY": KEY,
            "READY_WHEN": "complete",
            "LOG_FORMAT": "json",
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "HOST": "127.0.0.1",
            "PORT": str(port),
        }
        super().__init__(
            [sys.executable, "-m", "service", "serve"],
            port,
            folder / "catalogue.log",
            model="m0",
            ready_path="/health/ready",
            environment=environment | dict(settings),
        )
        self.process = psutil.Process(self.pid)

    def prompt(self, seed: int, num_tokens: int) -> list[int]:
        """Return random token ids."""
        return np.random.default_rng(seed).choice(self._words, num_tokens).tolist()

    def stream(self, calls: Sequence[tuple[str, list[int], int, float]]) -> list[Answer]:
        """Stream completions side by side, each of a model, a prompt, a number of tokens and a delay in seconds."""
        bodies = [Call(completion_body(model, prompt, n), delay_s) for model, prompt, n, delay_s in calls]
        return asyncio.run(send_all("127.0.0.1", self.port, bodies))[1]

    def text(self, model: str, prompt: list[int], num_tokens: int) -> str:
        """Return a greedy completion."""
        self.model = model
        return self.answer(prompt, num_tokens)["choices"][0]["text"]

    def first_token_s(self, model: str, prompt: list[int]) -> float:
        """Return the seconds from a request to its first token."""
        [answer] = self.stream([(model, prompt, 2, 0.0)])
        return answer.event_s[0] - answer.sent_s

    def admin(self, method: str, path: str) -> dict[str, Any]:
        """Return the answer of a route of the operator."""
        headers = {"Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/admin/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as response:
            return json.load(response)

    def load(self, model: str) -> None:
        """Load a model, and wait until its start is complete."""
        self.admin("POST", f"load/{model}")
        while not self._is_complete(model):
            time.sleep(0.1)

    def unload(self, model: str) -> None:
        """Unload a model."""
        self.admin("POST", f"unload/{model}")

    def reports(self) -> list[dict[str, Any]]:
        """Return the states of all models."""
        return self.admin("GET", "models")["data"]

    def _is_complete(self, model: str) -> bool:
        [report] = [report for report in self.reports() if report["id"] == model]
        assert report["failure"] is None, report["failure"]
        return report["state"] == "ready" and report["is_complete"]
