"""A running embedding model or reranker."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, override

from service.api.served import ServedEncoder, VectorFacts
from service.encoder.cache import VectorCache
from service.encoder.encoder import TextEncoder
from service.encoder.request import EncodeRequest
from service.encoder.runner import EncoderRunner
from service.errors import Draining, Overloaded
from service.models.encoders.token_heads import TokenOutputs
from service.start.context import StartContext
from service.start.kinds.model_spec import Running, TextFiles


class RunningEncoder(Running):
    """An encoder and its runner."""

    def __init__(
        self,
        context: StartContext,
        runner: EncoderRunner,
        vocab_size: int,
        vectors: VectorFacts,
        tokens: TokenOutputs | None,
    ) -> None:
        """Start the device thread."""
        self._encoder = TextEncoder(
            runner,
            context.model_metrics,
            max_requests=context.settings.max_concurrent_requests,
            on_failure=context.on_engine_failure,
        )
        self._encoder.start()
        self._cache = VectorCache(context.settings.embedding_cache_bytes, context.model_metrics)
        self._runner = runner
        self._vocab_size, self._vectors, self._tokens = vocab_size, vectors, tokens

    @property
    @override
    def thread(self) -> TextEncoder:
        return self._encoder

    @override
    def probe(self) -> None:
        asyncio.run(self._encode_token())

    @override
    def run_all(self) -> None:
        self._runner.run_all()

    @override
    def measured_fields(self) -> Mapping[str, Any]:
        return {}

    @override
    def served(self, text: TextFiles, **facts: Any) -> ServedEncoder:
        shapes = self._runner.shapes
        return ServedEncoder(
            **facts,
            encoder=self._encoder,
            tokenizer=text.tokenizer,
            max_model_len=shapes.max_model_len,
            vocab_size=self._vocab_size,
            vectors=self._vectors,
            cache=self._cache,
            tokens=self._tokens,
        )

    async def _encode_token(self) -> None:
        # A full encoder is about to answer clients, and a drain needs no vector.
        with contextlib.suppress(Overloaded, Draining):
            await self._encoder.submit(EncodeRequest("warm", ((0,),)))
