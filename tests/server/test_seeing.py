"""A model that sees, as its operators and clients have it: a process, the official client, a second start."""

import pytest
from openai import BadRequestError, OpenAI

from tests.media.image_files import drawing, image_file
from tests.process import running_service
from tests.sighted import data_url, save_gemma, save_gemma4, save_mistral, save_qwen, save_qwen35, save_sighted, shown

SETTINGS = {"model_name": "m", "max_num_seqs": 2, "max_prefill_tokens": 128}


def answer(client: OpenAI, *urls: str, **fields):
    return client.chat.completions.create(
        model="m", messages=shown(*urls), max_tokens=8, temperature=0, logprobs=True, **fields
    )


def compiles(service):
    return service.wait_for("ready", timeout_s=60)["compiles"]


# By the tokens of two images.
MODELS = {
    **{"smolvlm": (save_sighted, 40), "qwen3_vl": (save_qwen, 50), "gemma3": (save_gemma, 18)},
    **{"mistral3": (save_mistral, 63), "gemma4": (save_gemma4, 38), "qwen3_5": (save_qwen35, 50)},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("smolvlm", marks=pytest.mark.slow),
        "qwen3_vl",
        *(pytest.param(kind, marks=pytest.mark.grid) for kind in ("gemma3", "gemma4", "mistral3", "qwen3_5")),
    ],
)
def test_images_are_seen_by_the_official_client_and_a_second_start_compiles_nothing(tmp_path, kind):
    save, image_tokens = MODELS[kind]
    save(tmp_path / "model")
    settings = SETTINGS | {"model_uri": tmp_path / "model", "local_model_cache": tmp_path / "cache"}
    small, other = data_url(), data_url(image_file("JPEG", drawing(60, 44)), "image/jpeg")
    with running_service(**settings) as service:
        client = service.client()
        first = answer(client, small, other)
        details = first.usage.prompt_tokens_details
        assert (details.cached_tokens, details.to_dict()["image_tokens"]) == (0, image_tokens)
        again = answer(client, small, other)
        assert again.choices[0].message == first.choices[0].message
        assert again.usage.prompt_tokens_details.cached_tokens >= min(image_tokens - 2, 48)
        chunks = list(answer(client, small, other, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == first.choices[0].message.content
        swapped = answer(client, other, small)
        assert swapped.choices[0].logprobs != first.choices[0].logprobs
        with pytest.raises(BadRequestError, match="no supported format"):
            answer(client, data_url(b"GIF99"))
        with pytest.raises(BadRequestError, match="is a 'https:' URL"):
            answer(client, "https://example.com/a.png")
        assert compiles(service) > 0
    with running_service(**settings) as service:
        assert answer(service.client(), small, other).choices[0].message == first.choices[0].message
        assert compiles(service) == 0
