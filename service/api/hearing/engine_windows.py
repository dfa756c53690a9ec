"""The windows of one recording, decoded by the engine: each a request whose memory is the window."""

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np

from service.api.served import WindowTerms
from service.engine.engine import Engine
from service.engine.group import EngineGroup
from service.engine.request import FinishReason, Medium, Probe, Request, Sampling, TokenEvent, TokenStream
from service.engine.token_mask import pack_token_mask
from service.errors import Draining
from service.media.log_mel import Recording
from service.text.speech.model import SpeechModel
from service.text.speech.rules import TranscriptRules
from service.text.speech.transcribe import Decoding, Window, WindowDecoder
from service.text.speech.words import Alignment

DIGEST_BYTES = 32
MAX_KEPT = 8  # windows whose features are kept for their next decoding


class EngineWindows(WindowDecoder):
    """The windows of one recording."""

    def __init__(
        self, engine: Engine | EngineGroup, model: SpeechModel, recording: Recording, terms: WindowTerms
    ) -> None:
        """Begin with no window."""
        self._engine, self._model, self._recording, self._terms = engine, model, recording, terms
        self._media = OrderedDict[Window, Medium]()
        self._open: set[TokenStream] = set()
        self._num_requests = 0

    async def detect_language(self, window: Window) -> str:
        """Return the code of the language that is likeliest."""
        languages = self._model.tokens.languages
        mask = pack_token_mask(list(languages.values())).tobytes()
        sampling = Sampling(temperature=0.0, allowed_mask=mask)
        found, *_ = await self._events(window, Request("", (self._model.tokens.start,), 1, sampling))
        return next(code for code, token_id in languages.items() if token_id == found.token_ids[0])

    async def decode(self, window: Window, prompt_ids: Sequence[int], temperature: float) -> Decoding:
        """Continue a prompt by a transcript; at temperature 0, by the likeliest tokens."""
        tokens, model = self._model.tokens, self._model
        request = Request(
            "",
            tuple(prompt_ids),
            min(model.max_transcript_tokens, model.context_len - len(prompt_ids)),
            Sampling(
                temperature=temperature,
                seed=self._terms.seed,
                group_from=tokens.first_timestamp,
                num_logprobs=0,
                scores=True,
            ),
            frozenset({tokens.end}),
            probe=Probe(list(prompt_ids).index(tokens.start), tokens.no_speech),
            constraint=TranscriptRules(tokens, has_timestamps=True),
        )
        events = await self._events(window, request)
        token_ids = tuple(token_id for event in events for token_id in event.token_ids)
        scores = [entry.logprob for event in events for entry in event.logprobs]
        if (stop := events[-1].stop) is not None and stop[1] is not None:
            scores.append(stop[1].logprob)
        probe = events[0].probe
        assert probe is not None, "the first event of a request with a probe has it"
        return Decoding(token_ids, math.fsum(scores) / (len(token_ids) + 1), math.exp(probe.logprob))

    async def align(self, window: Window, start_ids: Sequence[int], text_ids: Sequence[int]) -> Alignment:
        """Return what the model attends to while it is given a text."""
        tokens = self._model.tokens
        prompt = (*start_ids, tokens.no_timestamps, *text_ids, tokens.end)
        request = Request("", prompt, 1, Sampling(temperature=0.0), heads=self._model.heads)
        first, *_ = await self._events(window, request)
        assert first.attention is not None, "the first event of a request with heads has their scores"
        return Alignment(first.attention)

    def abort(self) -> None:
        """Stop what is being decoded."""
        for stream in tuple(self._open):
            stream.abort()

    async def _events(self, window: Window, request: Request) -> list[TokenEvent]:
        """Return the events of a request about a window, at least one.

        Raises:
            Overloaded, Draining, EngineStopped: the engine does not accept it now.
            EngineError: the engine failed.
        """
        terms, number = self._terms, self._num_requests
        self._num_requests += 1
        request = replace(
            request,
            id=f"{terms.request_id}-{number}",
            memory=await self._medium(window),
            priority=terms.priority,
            flow=terms.flow,
            weight=terms.weight,
            cache_salt=terms.cache_salt,
        )
        stream = self._engine.submit(request)
        if number == 0:
            terms.wait(len(request.prompt_ids), stream.clock)
        self._open.add(stream)
        try:
            events = [event async for event in stream]
        finally:
            self._open.discard(stream)
            stream.abort()
        if events[-1].finish_reason is FinishReason.ABORT:
            raise Draining
        return events

    async def _medium(self, window: Window) -> Medium:
        """Return the features of a window, which takes a thread's time."""
        if window in self._media:
            self._media.move_to_end(window)
            return self._media[window]
        medium = self._media[window] = await asyncio.to_thread(self._made, window)
        if len(self._media) > MAX_KEPT:
            self._media.popitem(last=False)
        return medium

    def _made(self, window: Window) -> Medium:
        features = np.ascontiguousarray(self._recording.window(*window).T)
        return Medium(hashlib.blake2b(features.tobytes(), digest_size=DIGEST_BYTES).digest(), features)


@asynccontextmanager
async def listen(
    engine: Engine | EngineGroup, model: SpeechModel, recording: Recording, terms: WindowTerms
) -> AsyncIterator[WindowDecoder]:
    """Open the windows of a recording; leaving the context aborts what is decoded."""
    windows = EngineWindows(engine, model, recording, terms)
    try:
        yield windows
    finally:
        windows.abort()
