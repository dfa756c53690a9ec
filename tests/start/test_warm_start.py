"""A second start on the same cache: nothing is traced, compiled or imported that a first start needed."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import httpx
import pytest

from service.bundles.bundle import describe_file
from service.device.native.library import NativeCode, native_code
from tests.process import ServiceProcess, running_service
from tests.served import ADMIN, CACHE, ROOT, SMALL, Start, answers_of, outcomes_of, prewarm, start_of

pytestmark = pytest.mark.usefixtures("cold_start")

# What a warm start of a checkpoint on this machine has no use for, each a part of its time.
UNUSED = (
    *("levanter", "haliax", "equinox", "transformers", "torch", "tensorstore", "safetensors", "scipy", "optax"),
    *("google.auth", "google.cloud", "huggingface_hub", "httpx", "requests", "tenacity", "yaml", "matplotlib"),
    *("etils", "filelock", "cloudpickle"),
    *("pydantic.v1", "httptools", "websockets", "uvloop", "rich", "typer"),
    *("service.start.prewarm", "service.offline", "service.start.timeline"),
    *("service.storage.gcs.read", "service.storage.hub", "service.models.decoder"),
)


def wait_until_live(service: ServiceProcess) -> None:
    began_s = time.monotonic()
    while time.monotonic() < began_s + 30:
        with contextlib.suppress(httpx.ConnectError):
            httpx.get(f"{service.url}/health/live")
            return


@pytest.fixture(scope="module")
def two_starts(cold_start, demo_answers) -> tuple[Start, Start]:
    """A cold and a warm start of the demo model."""
    return cold_start, start_of(demo_answers)


def test_a_warm_start_traces_compiles_and_imports_nothing_of_the_cold_one(two_starts):
    cold, warm = (start.stats for start in two_starts)
    steps_and_copies = [s["part"] for s in cold["spans"] if s["phase"] == "executables" and s["part"] != "find bundle"]
    assert cold["compiles"] == len([part for part in steps_and_copies if part])
    assert cold["traces"] > 0
    assert "haliax" in cold["heavy_imports"]
    assert (warm["compiles"], warm["traces"], warm["heavy_imports"]) == (0, 0, [])
    assert [start.outcomes for start in two_starts] == [{"miss": 1}, {"hit": 1}]
    assert (cold["bundle_outcome"], warm["bundle_outcome"]) == ("miss", "hit")


def test_a_warm_start_imports_nothing_that_it_has_no_use_for():
    with running_service(pythonprofileimporttime="1") as service:
        told = [line for line in service.raw if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in told}
    assert {"jax", "fastapi", "service.start.load"} <= imported
    assert [name for name in imported if any(f"{name}.".startswith(f"{unused}.") for unused in UNUSED)] == []


def test_a_warm_start_loads_before_its_first_token_what_that_needs_and_the_rest_after(two_starts):
    warm = two_starts[1].stats
    loaded = [s for s in warm["spans"] if s["phase"] == "executables" and s["part"] not in ("", "find bundle")]
    before = {s["part"].partition("-")[0] for s in loaded if s["begin_s"] < warm["first_token_s"]}
    after = {s["part"].partition("-")[0] for s in loaded if s["begin_s"] >= warm["first_token_s"]}
    of_layers = {part for part in before if part.startswith("layers")}
    assert before - of_layers == {"initial", "embed", "set", "sample"}
    assert of_layers
    assert {"embed", "count", "prompt", "sample"} <= after


def test_a_warm_start_gives_the_same_greedy_answers(two_starts, demo_answers):
    cold, warm = two_starts
    assert cold.answers == warm.answers == [pair["answer"] for pair in demo_answers]


def test_the_start_is_told_with_begin_and_end_of_every_phase(two_starts):
    for stats in (start.stats for start in two_starts):
        assert {"import", "locate", "weights", "executables", "tokenizer", "warm"} == {
            s["phase"] for s in stats["spans"]
        }
        assert all(0 <= span["begin_s"] <= span["end_s"] for span in stats["spans"])
        assert {"jax", "api", "settings and server"} <= {span["part"] for span in stats["spans"]}
        assert stats["first_token_s"] <= stats["answering_s"] <= stats["ready_s"]
        assert {"jax", "jaxlib"} <= stats["packages"].keys()
        assert stats["shapes"]["num_slots"] == stats["slots"] == int(os.environ["MAX_NUM_SEQS"])
        assert stats["device_kind"]


@pytest.mark.skipif(native_code() is NativeCode.NONE, reason="there is no native code")
def test_both_starts_say_what_share_of_the_memorys_speed_they_reach_and_the_second_measures_nothing(two_starts):
    cold, warm = (start.stats for start in two_starts)
    assert cold["memory_read_gb_per_s"] == warm["memory_read_gb_per_s"] > 0
    for stats in (cold, warm):
        assert stats["most_decode_steps_per_s"] > 0
        assert stats["share_of_read_speed"] > 0
        assert [model["share_of_read_speed"] > 0 for model in stats["models"]] == [True]


def test_prewarm_finds_what_a_start_has_kept_and_a_check_compiles_nothing(tmp_path):
    code, lines = prewarm(CACHE, "--check")
    assert (code, lines[-1]["outcome"]) == (0, "hit")
    code, lines = prewarm(tmp_path, "--check")
    assert (code, lines[-1]["outcome"]) == (1, "miss")
    assert not any(tmp_path.rglob("manifest.json"))
    code, lines = prewarm(CACHE, "--check", max_model_len="512")
    assert code == 1
    [miss] = [line for line in lines if line.get("message") == "no bundle for this start yet"]
    assert miss["nearest_differs_in"] == ["shapes"]


def test_a_start_finds_what_prewarm_has_made_and_shared(one_sequence, tmp_path, demo_answers):
    lines, made = one_sequence.lines, one_sequence.lines[-1]
    assert made["outcome"] == "made"
    assert str(one_sequence.shared) in made["places"]
    executables = [line for line in lines if "executable" in line]
    assert len(executables) == made["executables"]
    assert all(line["compile_seconds"] > 0 and line["bytes"] > 0 for line in executables)
    [manifest] = (one_sequence.cache / "bundles").glob("*/manifest.json")
    phases = {span["phase"] for span in json.loads(manifest.read_text())["making"]["start"]["spans"]}
    assert "warm" in phases  # each ran once before it was kept
    settings = {"local_model_cache": tmp_path / "server", "bundle_uri": one_sequence.shared, **SMALL}
    with running_service(**settings) as service:
        assert outcomes_of(service) == {"hit": 1}
        assert answers_of(service, demo_answers[:3]) == [pair["answer"] for pair in demo_answers[:3]]
        service.wait_for("bundle stored", timeout_s=30)  # here too, so that the next start asks nobody
    code, lines = prewarm(tmp_path / "server", "--check", **SMALL)
    assert code == 0


@pytest.mark.slow
def test_a_corrupt_bundle_is_told_counted_replaced_and_never_run(one_sequence, tmp_path, demo_answers):
    settings = {"local_model_cache": tmp_path, **SMALL}
    shutil.copytree(one_sequence.cache, tmp_path, dirs_exist_ok=True)
    victim = next((tmp_path / "bundles").glob("*/*.executable"))
    victim.write_bytes(b"cos\nmkdir\n(S'" + str(tmp_path / "canary").encode() + b"'\ntR.")
    with running_service(**settings) as service:
        assert outcomes_of(service) == {"corrupt": 1}
        assert answers_of(service, demo_answers[:2]) == [pair["answer"] for pair in demo_answers[:2]]
        [warning] = [line for line in service.log if line["severity"] == "WARNING"]
        assert victim.name in warning["message"]
        service.wait_for("bundle stored", timeout_s=30)
    assert not (tmp_path / "canary").exists()
    assert prewarm(tmp_path, "--check", **SMALL)[0] == 0


@pytest.mark.slow
def test_a_bundle_of_which_one_executable_does_not_load_is_replaced_and_says_that_it_has_run(
    one_sequence, tmp_path, demo_answers
):
    settings = {"local_model_cache": tmp_path, **SMALL}
    shutil.copytree(one_sequence.cache, tmp_path, dirs_exist_ok=True)
    [path] = (tmp_path / "bundles").glob("*/manifest.json")
    manifest, code = json.loads(path.read_text()), b"no pickle"
    name = next(iter(manifest["executables"]))
    manifest["executables"][name] = file = asdict(describe_file(name, code, 1.0))
    manifest["making"]["has_run"] = False
    (path.parent / file["file"]).write_bytes(code)
    path.write_text(json.dumps(manifest))
    with running_service(**settings) as service:
        message = "an executable of the bundle failed to load; compiling it instead"
        assert service.wait_for(message, timeout_s=30)["executable"] == name
        assert answers_of(service, demo_answers[:2]) == [pair["answer"] for pair in demo_answers[:2]]
        service.wait_for("bundle stored", timeout_s=30)
    written = json.loads(path.read_text())
    assert written["making"]["has_run"]
    assert {file["file"] for file in written["executables"].values()} == {
        p.name for p in path.parent.glob("*.executable")
    }
    with running_service(**settings) as service:
        assert outcomes_of(service) == {"hit": 1}
        assert service.wait_for("ready", timeout_s=60)["compiles"] == 0


def test_the_stats_are_closed_without_their_key(demo_service):
    with running_service(api_key="client", admin_api_key="operator") as service:
        url = f"{service.url}/admin/stats"
        for headers in ({}, {"Authorization": "Bearer client"}, {"Authorization": "operator"}):
            refusal = httpx.get(url, headers=headers)
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (401, "invalid_api_key")
        assert httpx.get(url, headers=ADMIN).status_code == 200
    assert httpx.get(f"{demo_service.url}/admin/stats", headers=ADMIN).status_code == 404


def test_early_requests_wait_their_turn_where_they_may(demo_answers):
    with ServiceProcess(early_requests="wait") as service:
        wait_until_live(service)
        assert answers_of(service, demo_answers[:1]) == [demo_answers[0]["answer"]]


@pytest.mark.slow
def test_a_start_gets_ready_beside_early_requests_that_take_every_place():
    body = {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True, "model": "levserve-demo"}
    with ServiceProcess(early_requests="wait", max_concurrent_requests=16) as service:
        wait_until_live(service)
        with ThreadPoolExecutor(16) as pool:
            url = f"{service.url}/v1/completions"
            answers = list(pool.map(lambda _: httpx.post(url, json=body, timeout=60), range(16)))
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [200] * 16
        service.wait_until_ready()


@pytest.mark.parametrize("delay_s", [0.03, *(pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in (0.0, 0.06))])
def test_a_stop_between_the_first_answer_and_ready_is_no_failure(delay_s):
    with ServiceProcess() as service:
        service.wait_for("answering", timeout_s=60)
        time.sleep(delay_s)
        assert service.stop() == 0


@pytest.mark.slow
def test_the_service_starts_and_answers_the_same_with_the_import_tweaks_off(demo_answers):
    with running_service(levserve_import_tweaks="off") as service:
        assert answers_of(service, demo_answers) == [pair["answer"] for pair in demo_answers]


@pytest.mark.slow
def test_the_picture_of_the_start_is_drawn(tmp_path):
    picture = tmp_path / "start.png"
    command = [sys.executable, "-m", "service", "serve", "--profile-start", str(picture)]
    command += ["--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(json.loads(line)["message"] == "plotted the start" for line in process.stdout)
        process.kill()
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = subprocess.run(
        [*command[:4], "--profile-start", "start.doc"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "--profile-start: start.doc ends with none of" in wrong.stdout
