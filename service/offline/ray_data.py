"""Answers to the rows of a Ray Data pipeline, from a model in each of its actors."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
from pydantic_core import from_json

from service.api.batch.lines import BatchLine
from service.api.batch.requests import answers, as_background, client_of
from service.api.http.keys import OPEN_OWNER
from service.offline.batch import LINE_TIMEOUT_S
from service.offline.command import api_of, load_model
from service.settings.sources import load_settings


class AnswerBodies:
    """A callable class for `ray.data.Dataset.map_batches`: made in each actor, it loads the model; called, it answers.

    A batch gets two columns: `status_code`, and `answer`, the JSON of the response. A request that the API refuses is a
    row with its status and error. What a lost actor has not answered, Ray gives to another.

        dataset.map_batches(
            AnswerBodies,
            fn_constructor_kwargs={"settings": {"model_uri": "gs://bucket/model"}},
            compute=ray.data.ActorPoolStrategy(size=2),
            num_gpus=1,
            batch_size=512,
        )

    Source: https://docs.ray.io/en/latest/data/transforming-data.html (stateful transforms)
    """

    def __init__(
        self, url: str = "/v1/chat/completions", *, body: str = "body", settings: Mapping[str, Any] | None = None
    ) -> None:
        """Load the model, and wait until it is ready.

        Args:
            url: the route that answers.
            body: the column of the requests' bodies, each the text of a JSON object.
            settings: settings by their names, before those of the environment of the actor.

        Raises:
            SettingsError: a setting is wrong.
            StartError, EngineError: the model cannot be loaded.
        """
        self._url, self._column = url, body
        self._settings = load_settings(settings or {})
        self._loaded, metrics = load_model(self._settings)
        self._api = as_background(api_of(self._settings, self._loaded, metrics), OPEN_OWNER, lambda: LINE_TIMEOUT_S)
        self._runner = asyncio.Runner()  # one loop for all batches: what the API holds belongs to it

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a batch with the columns of the answers.

        Raises:
            TypeError: a body is not text.
            EngineStopped: the engine failed.
        """
        return {**batch, **self._runner.run(self._answered(batch[self._column]))}

    def close(self) -> None:
        """End the device thread, where the process goes on without the model; that of an actor ends with it."""
        self._runner.close()
        self._loaded.running.thread.stop()

    async def _answered(self, bodies: np.ndarray) -> dict[str, Any]:
        statuses, texts = np.zeros(len(bodies), np.int64), [""] * len(bodies)
        lines: list[BatchLine] = []
        for number, text in enumerate(bodies):
            if (parsed := self._parsed(text)) is not None:
                lines.append(BatchLine(str(number), self._url, parsed))
            else:
                error = {"message": "The body is not a JSON object.", "type": "invalid_request_error"}
                statuses[number], texts[number] = 400, json.dumps({"error": error | {"param": None, "code": None}})
        slots = asyncio.Semaphore(self._settings.max_concurrent_requests)
        async with client_of(self._api) as client, aclosing(answers(client, iter(lines), slots)) as found:
            async for answer in found:
                response = answer["response"]
                number = int(answer["custom_id"])
                statuses[number] = response["status_code"]
                texts[number] = json.dumps(response["body"], ensure_ascii=False)
        return {"status_code": statuses, "answer": texts}

    def _parsed(self, text: Any) -> dict[str, Any] | None:
        """Return the object that a body is; None if it is none."""
        if not isinstance(text, str | bytes):  # columns of objects give every row the fields of all rows
            raise TypeError(
                f"the column {self._column!r} has values of type {type(text).__name__}. Make each body a text with "
                "json.dumps."
            )
        try:
            value = from_json(text, allow_inf_nan=False)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None
