"""An app around an encoder whose vectors follow from the token ids alone."""

import asyncio
import json

import httpx
import numpy as np

from service.api.application import create_api
from service.api.http.access_log import AccessLog
from service.api.http.keys import ApiKeys, plain_keys
from service.api.served import ServedEncoder, VectorFacts
from service.encoder.cache import VectorCache
from service.observability.metrics import Metrics
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import ScriptedReadiness
from tests.encoder.tiny import tokenizer

MODEL = "org/encoder"
SIZE, MAX_TOKENS = 4, 8


def vector_of(token_ids):
    """A vector of length 1 that tells a text and its length."""
    vector = np.array([sum(token_ids), len(token_ids), token_ids[0], 1], np.float32)
    return vector / np.linalg.norm(vector)


def hidden_of(token_ids):
    """Hidden states that tell a token and its place."""
    return np.array([[token_id, place, 1, 0] for place, token_id in enumerate(token_ids)], np.float32)


class ScriptedEncoder:
    """Answers at once; records the texts of each request."""

    def __init__(self):
        self.requests = []
        self.futures, self.last = [], None
        self.error = None
        self.answers = True

    def submit(self, request):
        self.requests.append(request.texts)
        self.last = request
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        if self.error is not None:
            future.set_exception(self.error)
        elif self.answers and request.wants_tokens:
            future.set_result(np.concatenate([hidden_of(text) for text in request.texts]))
        elif self.answers:
            future.set_result(np.array([vector_of(text) for text in request.texts]))
        return future


class EncoderService:
    """The app, with its encoder at hand."""

    def __init__(self, *, vectors=None, tokens=None, cache_bytes=0, api_keys=(), strict_fields=False, **settings):
        self.encoder = ScriptedEncoder()
        facts = {"size": SIZE, "is_normalized": True, "matryoshka_sizes": None, "prompts": {}, "default_prompt": None}
        backend, self.metrics = Tokenizer(tokenizer()), Metrics()
        model = ServedEncoder(
            name=MODEL,
            created=1_700_000_000,
            tokenizer=backend,
            max_model_len=MAX_TOKENS,
            vocab_size=backend.vocab_size,
            system_fingerprint="fp_1",
            encoder=self.encoder,
            vectors=VectorFacts(**facts | (vectors or {})),
            cache=VectorCache(cache_bytes, self.metrics.of_model(MODEL)),
            tokens=tokens,
        )
        keys, self.readiness = ApiKeys(plain_keys(api_keys)), ScriptedReadiness(model)
        self.fastapi = create_api(self.readiness, self.metrics, keys=keys, **settings)
        self.app = AccessLog(self.fastapi, metrics=self.metrics, strict_fields=strict_fields)

    def client(self):
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    async def post(self, path="/v1/embeddings", **body):
        content = json.dumps({"model": MODEL} | body)
        return await self.send("POST", path, content=content, headers={"content-type": "application/json"})

    async def get(self, path):
        return await self.send("GET", path)

    async def send(self, method, path, **request):
        async with self.client() as client:
            return await client.request(method, path, **request)


def error_of(response):
    return response.json()["error"]
