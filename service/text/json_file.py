"""JSON files beside a checkpoint's weights."""

import json
from pathlib import Path
from typing import Any

from service.errors import MalformedCheckpoint


def read_json(folder: Path, name: str, uri: str) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if the file does not exist.

    Raises:
        MalformedCheckpoint: it holds anything else.
    """
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(uri, name, "is not JSON") from error
    if not isinstance(content, dict):
        raise MalformedCheckpoint(uri, name, "is not a JSON object")
    return content
