"""The recordings of a batch's lines: a body names one by `file_url`, and is sent as a form.

    {"model": "whisper", "file_url": "file:monday.mp3"}              relative to the folder of the batch file
    {"model": "whisper", "file_url": "data:audio/wav;base64,UklG…"}

Source: https://docs.vllm.ai/en/latest/examples/offline_inference/openai_batch.html (`file_url`)
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.api.batch.lines import BadLine
from service.api.generation.data_urls import decode, encoded_content

AUDIO_URLS = ("/v1/audio/transcriptions", "/v1/audio/translations")
FILE_URL = "file_url"
PARAM = f"body.{FILE_URL}"
LOCAL = "file:"
EXAMPLE = "data:audio/wav;base64,"


def check_recording(body: dict[str, Any], folder: Path) -> None:
    """Check what can be known of a recording without reading it.

    Raises:
        BadLine: the body names none, or one that is not there.
    """
    url = _checked_url(body)
    if url.startswith(LOCAL) and not (path := folder / url.removeprefix(LOCAL)).is_file():
        raise BadLine("invalid_value", f"Invalid '{PARAM}': there is no file {path}.", PARAM)


def read_recording(body: dict[str, Any], read_file: Callable[[str], bytes]) -> bytes:
    """Return the recording that a body names.

    Args:
        body: the body of a request in a batch.
        read_file: reads a file beside the batch file by its relative name; raises OSError if that cannot be read.

    Raises:
        BadLine: it names none, or one that cannot be read.
    """
    url = _checked_url(body)
    try:
        if url.startswith(LOCAL):
            return read_file(url.removeprefix(LOCAL))
        return decode(encoded_content(url) or "")
    except OSError as error:
        message = f"Invalid '{PARAM}': {url.removeprefix(LOCAL)} cannot be read: {error.strerror}."
    except ValueError:
        message = f"Invalid '{PARAM}': what follows '{EXAMPLE}' must be base64."
    raise BadLine("invalid_value", message, PARAM)


def form_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return the other fields of a body as a form has them."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, list):
            fields[f"{name}[]"] = [_text(each) for each in value]
        elif name != FILE_URL and value is not None:
            fields[name] = _text(value)
    return fields


def _checked_url(body: dict[str, Any]) -> str:
    url = body.get(FILE_URL)
    if not isinstance(url, str):
        raise BadLine("missing_required_parameter", f"Missing required parameter: '{PARAM}'.", PARAM)
    if not url.startswith(LOCAL) and encoded_content(url) is None:
        message = f"Invalid '{PARAM}': it must be a file, as '{LOCAL}monday.mp3', or its content, as '{EXAMPLE}…'."
        raise BadLine("invalid_value", message, PARAM)
    return url


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
