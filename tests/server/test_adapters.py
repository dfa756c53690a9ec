"""Adapters as users have them: folders beside their base in a catalogue, and vLLM's routes, in one service."""

import asyncio
import json
import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import save_file

from service.cli import build_parser
from service.smoke.command import run
from tests.process import running_service
from tests.served import ADMIN, DEMO, demo_tensors

TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
PROMPTS = ("The sky is", "One, two,", "A model", "Once", "Yes")


def save_adapter(folder, seed, *, rank=4, base="someone/base", poison=None, **config):
    """Write an adapter of the demo model, as PEFT does."""
    random = np.random.RandomState(seed)
    shapes = {name: tensor.shape for name, tensor in demo_tensors().items()}
    tensors = {}
    for name, (num_out, num_in) in ((n, s) for n, s in shapes.items() if n.removesuffix(".weight").endswith(TARGETS)):
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"] = (random.randn(rank, num_in) * 0.2).astype(np.float32)
        tensors[f"{module}.lora_B.weight"] = (random.randn(num_out, rank) * 0.2).astype(np.float32)
    if poison is not None:
        next(iter(tensors.values()))[0, 0] = poison
    folder.mkdir(parents=True)
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "base_model_name_or_path": base, **config}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogue")
    shutil.copytree(DEMO, folder / "base")
    for number in range(4):
        save_adapter(folder / f"tuned-{number}", number)
    save_adapter(folder / "wide", 5, rank=9)
    save_adapter(folder / "broken", 6, poison=np.nan)
    deep = folder / "apart" / "deep"  # below what a listing finds
    save_adapter(deep / "late", 7)
    save_adapter(deep / "stranger", 9, base="someone/else")
    save_adapter(deep / "silent", 9, lora_alpha=0)
    save_adapter(deep / "decomposed", 9, use_dora=True)
    save_adapter(deep / "misshapen", 9, r=3)
    os.truncate(save_adapter(deep / "huge", 9) / "adapter_model.safetensors", 5_000_000_000)  # of no blocks
    os.truncate(save_adapter(deep / "torn", 9) / "adapter_model.safetensors", 1000)
    save_adapter(folder.parent / "outside", 8)
    (folder / "models.yaml").write_text(
        f"models:\n  - name: described\n    adapter: {folder.parent / 'outside'}\n    base: base\n"
    )
    return folder


@pytest.fixture(scope="module")
def service(catalogue, tmp_path_factory):
    settings = {
        "catalogue_uri": catalogue,
        "models_config": catalogue / "models.yaml",
        "local_model_cache": tmp_path_factory.mktemp("cache"),
        "admin_api_key": "operator",
        "max_loras": 2,
        "max_lora_rank": 8,
        "max_num_seqs": 4,
        "max_model_len": 256,
        "max_prefill_tokens": 64,
        "lora_cache_bytes": 2_500_000,  # of three adapters
    }
    with running_service(**settings) as running:
        yield running


def complete(service, model, prompt, **options):
    body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "seed": 1, **options}
    return httpx.post(f"{service.url}/v1/completions", json=body, timeout=120)


def text(service, model, prompt):
    answer = complete(service, model, prompt)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def admin(service, path, **body):
    return httpx.post(f"{service.url}/v1/{path}", json=body, headers=ADMIN, timeout=120)


def stats(service):
    return httpx.get(f"{service.url}/admin/stats", headers=ADMIN).json()


def models(service):
    return {model["id"]: model for model in httpx.get(f"{service.url}/v1/models").json()["data"]}


def test_adapters_are_models_with_their_base_as_parent_and_each_answers_as_when_alone(service):
    names = ["base", "described", *(f"tuned-{number}" for number in range(4))]
    listed = models(service)
    assert {name: listed[name]["parent"] for name in names} == {"base": None} | dict.fromkeys(names[1:], "base")
    alone = {(name, prompt): text(service, name, prompt) for name in names for prompt in PROMPTS[:2]}
    assert len({tuple(alone[name, prompt] for prompt in PROMPTS[:2]) for name in names}) == len(names)
    with ThreadPoolExecutor(12) as pool:
        together = pool.map(lambda key: (key, text(service, *key)), [*alone] * 2)
        assert all(alone[key] == answer for key, answer in together)
    assert models(service)["base"]["state"] == "ready"
    assert 0 < stats(service)["adapter_bytes"] <= 2_500_000


def test_an_adapter_of_the_catalogues_folder_is_loaded_and_unloaded_by_an_operator(service, catalogue):
    assert complete(service, "late", "Yes").status_code == 404
    loaded = admin(service, "load_lora_adapter", lora_name="late", lora_path="apart/deep/late")
    assert loaded.status_code == 200, loaded.text
    assert (loaded.json()["state"], models(service)["late"]["parent"]) == ("ready", "base")
    client = service.client()
    answer = client.completions.create(model="late", prompt="Yes", max_tokens=4, temperature=0).choices[0].text
    again = admin(service, "load_lora_adapter", lora_name="late", lora_path="apart/deep/late")
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
    path = str(catalogue / "apart/deep/late")
    replaced = admin(service, "load_lora_adapter", lora_name="late", lora_path=path, load_inplace=True)
    assert replaced.status_code == 200, replaced.text

    stream = client.completions.create(model="late", prompt="Yes", max_tokens=40, temperature=0, stream=True)
    first = next(stream).choices[0].text
    assert admin(service, "unload_lora_adapter", lora_name="late").status_code == 200
    assert (first + "".join(chunk.choices[0].text for chunk in stream)).startswith(answer)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="late", prompt="Yes")
    assert admin(service, "unload_lora_adapter", lora_name="late").status_code == 404


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside", "inside the catalogue"),
        ("apart/../../outside", "inside the catalogue"),
        ("gs://elsewhere/adapter", "inside the catalogue"),
        ("/etc", "inside the catalogue"),
        ("absent", "absent"),
        ("base", "adapter_config.json"),
        ("wide", "MAX_LORA_RANK is 8"),
        ("broken", "NaN"),
        ("apart/deep/stranger", "base_model_name_or_path: is 'someone/else', which is no model of this catalogue"),
        ("apart/deep/silent", "adapter_config.json: lora_alpha: is 0"),
        ("apart/deep/decomposed", "use_dora: DoRA is not served"),
        ("apart/deep/misshapen", "adapter_model.safetensors"),
        ("apart/deep/huge", "is 5,000,000,000 bytes; the limit is 4,294,967,296"),
        ("apart/deep/torn", "adapter_model.safetensors"),
    ],
)
def test_what_is_no_adapter_of_this_catalogue_is_refused_with_the_reason(service, path, reason):
    answer = admin(service, "load_lora_adapter", lora_name="refused", lora_path=path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_path")
    assert reason in answer.json()["error"]["message"]
    assert "refused" not in models(service)


def test_an_adapter_that_is_refused_leaves_neither_bytes_nor_other_tokens_and_takes_nobodys_place(service):
    assert admin(service, "load_lora_adapter", lora_name="kept", lora_path="apart/deep/late").status_code == 200
    asked = [(name, prompt) for name in ("base", "kept") for prompt in PROMPTS]
    before = [text(service, *key) for key in asked]
    num_bytes = stats(service)["adapter_bytes"]
    with ThreadPoolExecutor(4) as pool:
        during = pool.map(lambda key: text(service, *key), asked)
        for path in ("broken", "wide", "apart/deep/huge", "apart/deep/torn", "../outside"):
            answer = admin(service, "load_lora_adapter", lora_name="kept", lora_path=path, load_inplace=True)
            assert answer.status_code == 400
        assert list(during) == before
    assert [text(service, *key) for key in asked] == before
    assert stats(service)["adapter_bytes"] == num_bytes
    assert admin(service, "unload_lora_adapter", lora_name="kept").status_code == 200


def test_a_folder_that_was_replaced_is_read_anew_and_never_mixed(service, catalogue, tmp_path):
    before = text(service, "tuned-3", "Once")
    newer = save_adapter(tmp_path / "newer", 13)
    shutil.rmtree(catalogue / "tuned-3")
    shutil.copytree(newer, catalogue / "tuned-3")
    answer = admin(service, "load_lora_adapter", lora_name="expected", lora_path="tuned-3")
    assert answer.status_code == 200, answer.text
    expected = text(service, "expected", "Once")
    assert admin(service, "unload_lora_adapter", lora_name="expected").status_code == 200
    assert text(service, "tuned-3", "Once") in (before, expected)
    assert before != expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_thousand_loads_at_once_each_is_answered_and_requests_go_on(service):
    async def load(client: httpx.AsyncClient, number: int) -> int:
        path = f"tuned-{number % 3}" if number % 2 else "broken"
        body = {"lora_name": f"many-{number}", "lora_path": path}
        return (await client.post("/v1/load_lora_adapter", json=body)).status_code

    async def load_all() -> list[int]:
        limits = httpx.Limits(max_connections=250)
        async with httpx.AsyncClient(base_url=service.url, headers=ADMIN, limits=limits, timeout=300) as client:
            return await asyncio.gather(*(load(client, number) for number in range(1000)))

    expected = text(service, "tuned-1", "Yes")
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(asyncio.run, load_all())
        while not answers.done():
            assert text(service, "tuned-1", "Yes") == expected
        outcomes = Counter(answers.result())
    assert set(outcomes) <= {200, 400, 429}, outcomes
    assert stats(service)["adapter_bytes"] <= 2_500_000
    loaded = [name for name in models(service) if name.startswith("many-")]
    assert len(loaded) == outcomes[200] > 0
    assert all(admin(service, "unload_lora_adapter", lora_name=name).status_code == 200 for name in loaded)


def test_a_listed_adapter_that_is_refused_fails_for_those_who_ask_for_it_alone(service):
    for name, reason in (("wide", "MAX_LORA_RANK is 8"), ("broken", "NaN")):
        assert (complete(service, name, "Yes").status_code, models(service)[name]["state"]) == (503, "available")
        assert reason in models(service)[name]["error"]
    assert "error" not in models(service)["tuned-1"]
    assert text(service, "tuned-1", "Yes")


def test_only_the_operator_loads_adapters_and_names_of_models_are_taken(service):
    body = {"lora_name": "x", "lora_path": "tuned-0"}
    assert httpx.post(f"{service.url}/v1/load_lora_adapter", json=body).status_code == 401
    taken = admin(service, "load_lora_adapter", lora_name="tuned-1", lora_path="tuned-0")
    assert (taken.status_code, taken.json()["error"]["param"]) == (400, "lora_name")
    assert admin(service, "load_lora_adapter", lora_path="tuned-0").json()["error"]["param"] == "lora_name"
    assert admin(service, "unload_lora_adapter", lora_name="tuned-0").status_code == 404


def test_smoke_asks_an_adapter_too(service, capsys):
    text(service, "tuned-2", "Yes")
    code = run(build_parser().parse_args(["smoke", service.url, "--model", "base", "--requests", "1"]))
    out = capsys.readouterr().out
    assert code == 0, out
    assert "; tuned-" in out


def test_a_scrape_names_the_slots(service):
    text(service, "tuned-0", "Yes")
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("levserve_lora_requests_info{") and '"base"' in line]
    assert 'max_lora="2"' in line


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_adapters_over_four_slots_are_each_read_once_and_all_answer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hundred")
    shutil.copytree(DEMO, folder / "base")
    for number in range(100):
        save_adapter(folder / f"a{number}", number, rank=2)
    random = np.random.RandomState(41)
    popularity = 1 / np.arange(1, 101)
    chosen = random.choice(100, 400, p=popularity / popularity.sum())
    settings = {
        "catalogue_uri": folder,
        "local_model_cache": tmp_path_factory.mktemp("cache"),
        "admin_api_key": "operator",
        "max_loras": 4,
        "max_lora_rank": 2,
        "max_num_seqs": 8,
        "max_model_len": 128,
        "max_prefill_tokens": 64,
    }
    with running_service(**settings) as service:
        text(service, "base", "Yes")
        answers: dict[str, set[str]] = {}
        with ThreadPoolExecutor(16) as pool:
            for name, answer in pool.map(lambda n: (f"a{n}", text(service, f"a{n}", "The sky is")), chosen):
                answers.setdefault(name, set()).add(answer)
        assert all(len(same) == 1 for same in answers.values())
        assert stats(service)["adapter_bytes"] > 0
        lines = httpx.get(f"{service.url}/metrics").text.splitlines()
        [compiles] = [line for line in lines if line.startswith("levserve_xla_compiles_after_ready_total")]
        assert float(compiles.split()[-1]) == 0
        read = [entry["uri"].rpartition("/")[2] for entry in service.log if entry.get("message") == "read an adapter"]
        assert sorted(read) == sorted(answers)
