"""One process that serves a chat model and an encoder with real weights: side by side, and one for the other."""

import httpx
import pytest
import yaml

from service.device.memory import host_memory_bytes
from tests.parity.sentences import minilm
from tests.process import START_TIMEOUT_S, running_service
from tests.served import ADMIN, DEMO, SMALL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# MiniLM's weights take 91 MB, and the demo's 11 MB besides its cache.
ROOM_FOR_ONE_BYTES = 100_000_000


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    """The settings of a process with both models, whose bundles stay between two starts."""
    folder = tmp_path_factory.mktemp("both")
    models = [{"name": "chat", "uri": str(DEMO)}, {"name": "minilm", "uri": str(minilm())}]
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": models}))
    return SMALL | {
        "models_config": folder / "models.yaml",
        "local_model_cache": folder / "cache",
        "admin_api_key": "operator",
    }


def answer_of(client):
    messages = [{"role": "user", "content": "Who are you?"}]
    answer = client.chat.completions.create(model="chat", messages=messages, temperature=0, max_tokens=8)
    return answer.choices[0].message.content


def vector_of(client):
    return client.embeddings.create(model="minilm", input="That is a happy person").data[0].embedding


def states(service):
    answer = httpx.get(f"{service.url}/admin/models", headers=ADMIN)
    return {model["id"]: (model["state"], model["starts"]) for model in answer.json()["data"]}


def test_a_chat_model_and_an_encoder_answer_side_by_side_and_under_a_small_budget_one_after_the_other(catalogue):
    with running_service(**catalogue) as service:
        client = service.client(timeout=START_TIMEOUT_S)
        text, vector = answer_of(client), vector_of(client)
        assert text
        assert sum(value * value for value in vector) == pytest.approx(1, abs=1e-5)
        assert states(service) == {"chat": ("ready", 1), "minilm": ("ready", 1)}

    fraction = ROOM_FOR_ONE_BYTES / host_memory_bytes()
    with running_service(**catalogue, device_memory_fraction=fraction) as service:
        client = service.client(timeout=START_TIMEOUT_S)
        assert answer_of(client) == text
        assert vector_of(client) == pytest.approx(vector, abs=1e-6)
        assert states(service) == {"chat": ("available", 1), "minilm": ("ready", 1)}
        assert answer_of(client) == text
        assert states(service) == {"chat": ("ready", 2), "minilm": ("available", 1)}
