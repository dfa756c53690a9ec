"""A running speech model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, override

import numpy as np

from service.api.hearing.engine_windows import listen
from service.api.served import ServedSpeechModel
from service.engine.request import Medium, Request, Sampling
from service.engine.schedule.device_turns import DeviceTurns
from service.models.description import DecoderConfig
from service.start.context import StartContext
from service.start.kinds.model_spec import TextFiles
from service.start.kinds.running_engine import RunnerMaker, RunningEngine
from service.text.speech.model import SpeechModel
from service.text.speech.tokens import read_speech_tokens


class RunningListener(RunningEngine):
    """An engine whose sequences remember windows of sound."""

    def __init__(
        self,
        context: StartContext,
        makers: Sequence[RunnerMaker],
        config: DecoderConfig,
        formats: Mapping[str, str],
        turns: Callable[[int], DeviceTurns] | None = None,
    ) -> None:
        """Start the device threads; see `RunningEngine`."""
        assert config.speech_encoder is not None
        self._config, self._encoder = config, config.speech_encoder
        super().__init__(context, makers, config.vocab_size, formats, turns)

    @override
    def served(self, text: TextFiles, **facts: Any) -> ServedSpeechModel:
        backend = text.tokenizer.backend
        tokens = read_speech_tokens(facts["name"], backend, {"vocab_size": self._config.vocab_size}, text.generation)
        speech = SpeechModel(
            tokens,
            text.tokenizer,
            context_len=self._shapes.max_model_len,
            window_frames=self._encoder.num_frames,
            num_mels=self._encoder.num_mels,
            heads=_heads(text.generation, self._config),
        )
        return ServedSpeechModel(
            **facts,
            tokenizer=text.tokenizer,
            max_model_len=speech.context_len,
            vocab_size=self._vocab_size,
            speech=speech,
            has_word_times=bool(speech.heads),
            listen=partial(listen, self._engine, speech),
        )

    @override
    def _probe_request(self, num_tokens: int) -> Request:
        silence = np.zeros((self._encoder.num_frames, self._encoder.num_mels), np.float32)
        return Request("warm", (0,), num_tokens, Sampling(temperature=0.0), memory=Medium(b"silence", silence))


def _heads(generation: Mapping[str, Any], config: DecoderConfig) -> tuple[tuple[int, int], ...]:
    """Return the layer and number of each head that follows the sound; empty if none that exist are named."""
    stated = generation.get("alignment_heads")
    num_heads = config.heads.num_heads
    if not isinstance(stated, list):
        return ()
    try:
        heads = tuple((int(layer), int(head)) for layer, head in stated)
    except (TypeError, ValueError):
        return ()
    return heads if all(0 <= layer < config.num_layers and 0 <= head < num_heads for layer, head in heads) else ()
