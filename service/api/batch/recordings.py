"""The recordings of a batch's lines: a body names one by `file_url`, and is sent as a form.

    {"model": "whisper", "file_url": "file:monday.mp3"}              relative to the folder of the batch file
    {"model": "whisper", "file_url": "data:audio/wav;base64,UklG…"}

Source: https://docs.vllm.ai/en/latest/examples/offline_inference/openai_batch.html (`file_url`)
"""

import json
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
    url = body.get(FILE_URL)
    if not isinstance(url, str):
        raise BadLine("missing_required_parameter", f"Missing required parameter: '{PARAM}'.", PARAM)
    if url.startswith(LOCAL):
        if not (path := _path(url, folder)).is_file():
            raise BadLine("invalid_value", f"Invalid '{PARAM}': there is no file {path}.", PARAM)
    elif encoded_content(url) is None:
        message = f"Invalid '{PARAM}': it must be a file, as '{LOCAL}monday.mp3', or its content, as '{EXAMPLE}…'."
        raise BadLine("invalid_value", message, PARAM)


def read_recording(body: dict[str, Any], folder: Path) -> bytes:
    """Return the recording that a checked body names.

    Args:
        body: the body of a request in a batch, checked before.
        folder: where local files are.

    Raises:
        BadLine: it cannot be read.
    """
    url = body[FILE_URL]
    try:
        if url.startswith(LOCAL):
            return _path(url, folder).read_bytes()
        return decode(encoded_content(url) or "")
    except OSError as error:
        message = f"Invalid '{PARAM}': {_path(url, folder)} cannot be read: {error.strerror}."
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


def _path(url: str, folder: Path) -> Path:
    return folder / url.removeprefix(LOCAL)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
