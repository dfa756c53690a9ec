"""The official client asks this server for vectors."""

import openai
import pytest

from tests.api.vectors.scripted_encoder import MODEL, EncoderService, vector_of
from tests.encoder.tiny import CLS, SEP, VOCAB

pytestmark = pytest.mark.anyio

CAT = vector_of((CLS, VOCAB["cat"], SEP)).tolist()


def client_of(service):
    return openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=service.client(), max_retries=0)


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
async def test_a_vector_arrives_in_every_encoding(options):
    async with client_of(EncoderService()) as client:
        answer = await client.embeddings.create(model=MODEL, input=["cat", "dog"], user="someone", **options)
    assert (len(answer.data), answer.usage.prompt_tokens, answer.model) == (2, 6, MODEL)
    if options != {"encoding_format": "base64"}:
        assert answer.data[0].embedding == pytest.approx(CAT, abs=1e-7)


async def test_a_vector_is_cut_to_dimensions():
    service = EncoderService(vectors={"matryoshka_sizes": (2,)})
    async with client_of(service) as client:
        answer = await client.embeddings.create(model=MODEL, input="cat", dimensions=2)
        assert len(answer.data[0].embedding) == 2
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.embeddings.create(model=MODEL, input="cat", dimensions=3)
    assert refusal.value.param == "dimensions"


async def test_a_chat_with_an_encoder_is_refused_by_name():
    async with client_of(EncoderService()) as client:
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings") as refusal:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert (refusal.value.param, refusal.value.code) == ("model", "unsupported_model")
