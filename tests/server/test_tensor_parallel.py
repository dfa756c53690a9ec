"""The service on two devices of one processor: the same text, a warm start, and a number that cannot be."""

import httpx
import pytest

from tests.process import ServiceProcess, running_service

ADMIN = {"Authorization": "Bearer operator"}
SETTINGS = {
    "xla_flags": "--xla_force_host_platform_device_count=4",
    "tensor_parallel": 2,
    "max_num_seqs": 1,
    "max_model_len": 128,
    "max_prefill_tokens": 32,
    "admin_api_key": "operator",
}


@pytest.fixture(scope="module")
def two_starts(tmp_path_factory, demo_answers):
    """A cold and a warm start on two devices, with what each answered and told of itself."""
    cache = tmp_path_factory.mktemp("cache")
    told = []
    for _ in range(2):
        with running_service(local_model_cache=cache, **SETTINGS) as service:
            client = service.client()
            answers = []
            for pair in demo_answers[:2]:
                asked = [{"role": "user", "content": pair["question"]}]
                answer = client.chat.completions.create(model="levserve-demo", messages=asked, temperature=0)
                answers.append(answer.choices[0].message.content)
            if not told:
                service.wait_for("bundle stored", timeout_s=30)
            stats = httpx.get(f"{service.url}/admin/stats", headers=ADMIN).json()
            planned = service.wait_for("planned", timeout_s=60)
            told.append((answers, stats, planned))
    return told


@pytest.mark.slow
def test_two_devices_give_the_text_of_one(two_starts, demo_answers):
    for answers, _, _ in two_starts:
        assert answers == [pair["answer"] for pair in demo_answers[:2]]


@pytest.mark.slow
def test_a_warm_start_on_two_devices_traces_and_compiles_nothing(two_starts):
    (_, cold, _), (_, warm, _) = two_starts
    assert cold["compiles"] > 0
    assert (cold["bundle_outcome"], warm["bundle_outcome"]) == ("miss", "hit")
    assert (warm["compiles"], warm["traces"], warm["heavy_imports"]) == (0, 0, [])


@pytest.mark.slow
def test_the_start_tells_how_many_devices_share_the_work(two_starts):
    for _, stats, planned in two_starts:
        assert stats["mesh"] == {"shape": {"model": 2}, "device_ids": [0, 1]}
        assert (planned["tensor_parallel"], planned["kv_head_copies"]) == (2, 1)


def test_a_number_of_devices_that_cannot_be_ends_the_start_in_one_line():
    with ServiceProcess(**SETTINGS | {"tensor_parallel": 3}) as service:
        assert service.exit_code == 1
        [line] = [line["message"] for line in service.log if line.get("severity") in ("ERROR", "CRITICAL")]
    assert "TENSOR_PARALLEL" in line
    assert "num_attention_heads = 4" in line
    assert "Possible values: 1, 2, 4." in line
