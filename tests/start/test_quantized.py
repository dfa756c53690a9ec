"""The demo model in 8 bits behind a real port: its pinned answers, and what it says of itself."""

import httpx
import pytest

from tests.process import running_service
from tests.served import SMALL, answers_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "flags"),
    [("int8", ""), ("int8", "--xla_cpu_max_isa=AVX2"), ("fp8", "")],
    ids=["int8", "int8, AVX2 alone", "fp8"],
)
def test_the_demo_model_gives_its_answers_in_8_bits(
    quantization: str, flags: str, tmp_path, demo_answers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with running_service(quantization=quantization, local_model_cache=tmp_path, **SMALL) as service:
        assert answers_of(service, demo_answers) == [pair["answer"] for pair in demo_answers]
        [model] = httpx.get(f"{service.url}/v1/models").json()["data"]
        assert (model["quantization"], model["dtype"]) == (quantization, "float32")
