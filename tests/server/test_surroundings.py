"""The same tokens whatever a machine gives the native code: one core, many threads, other allocators, little memory."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.device.native.library import native_code
from tests.process import ServiceProcess, running_service
from tests.served import DEMO, SMALL

pytestmark = pytest.mark.slow

PROMPTS = ("The sky is", "One, two, three, four,", "Once upon a time " * 12)
PRELOADED = [
    path
    for folder in (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/local/lib"))
    for name in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2")
    if (path := folder / name).exists()
]


def tokens_of(service: ServiceProcess) -> list[list[str]]:
    body = {"model": "levserve-demo", "max_tokens": 24, "temperature": 0, "logprobs": 1}
    answers = [
        httpx.post(f"{service.url}/v1/completions", json=body | {"prompt": prompt}, timeout=120).json()
        for prompt in PROMPTS
    ]
    return [answer["choices"][0]["logprobs"]["tokens"] for answer in answers]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def expected(cache):
    with running_service(local_model_cache=cache, **SMALL) as service:
        return tokens_of(service)


@contextmanager
def one_core():
    """Start processes on one core alone."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def test_one_core(cache, expected):
    with one_core(), running_service(local_model_cache=cache, **SMALL) as service:
        assert len(os.sched_getaffinity(service.process.pid)) == 1
        assert tokens_of(service) == expected


@pytest.mark.parametrize(
    "surroundings",
    [
        pytest.param({"nproc": 64}, id="64 threads"),  # of XLA, whatever there are of cores
        pytest.param({"malloc_perturb_": 165}, id="memory that is not zero"),
        pytest.param({"glibc_tunables": "glibc.malloc.hugetlb=2"}, id="huge pages"),
        *(pytest.param({"ld_preload": path}, id=path.name) for path in PRELOADED),
    ],
)
def test_other_threads_and_allocators(cache, expected, surroundings):
    with running_service(local_model_cache=cache, **SMALL, **surroundings) as service:
        if "nproc" in surroundings:
            assert len(list(Path(f"/proc/{service.process.pid}/task").iterdir())) > 64
        if "ld_preload" in surroundings:
            assert str(surroundings["ld_preload"].resolve()) in Path(f"/proc/{service.process.pid}/maps").read_text()
        assert tokens_of(service) == expected
        assert service.stop() == 0


@pytest.mark.skipif(not native_code().has_products, reason="there are no products in C++ here")
def test_a_context_of_131072_in_little_memory_is_cut_with_the_numbers_and_the_rest_answers(expected, tmp_path):
    shutil.copytree(DEMO, tmp_path / "model")
    config = json.loads((DEMO / "config.json").read_text()) | {"max_position_embeddings": 131_072}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    settings = {
        "model_uri": tmp_path / "model",
        "model_name": "levserve-demo",
        "local_model_cache": tmp_path / "cache",
        "max_num_seqs": 1,
        "device_memory_fraction": 1e8 / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
    }
    with running_service(**settings) as service:
        [model] = httpx.get(f"{service.url}/v1/models").json()["data"]
        assert 1024 < model["max_model_len"] < 131_072
        assert tokens_of(service) == expected
        body = {"model": "levserve-demo", "prompt": [5] * model["max_model_len"], "max_tokens": 1}
        refused = httpx.post(f"{service.url}/v1/completions", json=body, timeout=120)
        assert refused.status_code == 400
        assert str(model["max_model_len"]) in refused.json()["error"]["message"]
