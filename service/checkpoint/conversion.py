"""A Levanter checkpoint converted to safetensors, config.json and tokenizer, so that later starts need no Levanter.

Its name is a digest of the Levanter checkpoint's listing, so another version of any object has another name.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.file_set import OpenSource
from service.checkpoint.layout import (
    CONVERSION_MARKER,
    GENERATION_CONFIG,
    TOKENIZER_FILES,
    LevanterLayout,
    detect_layout,
    newest_export,
)
from service.checkpoint.model_config import CONFIG_JSON
from service.checkpoint.tokenizer_files import pull_tokenizer
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.location import parse_location

FOLDER = "converted"
FORMAT = 3  # of a conversion: ends and sampling are those of the model, wherever its tokenizer is
WEIGHTS = "model.safetensors"


def conversion_name(uri: str, open_source: OpenSource, sources: Sequence[str | None]) -> str | None:
    """Return the name of a checkpoint's conversion, which may exist or not; None if it needs none.

    Args:
        uri: MODEL_URI.
        open_source: opens a location.
        sources: further settings that the conversion depends on.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    source = open_source(parse_location(uri))
    try:
        objects = source.list()
        if newest_export(objects) is not None:
            return None
        layout = detect_layout(source.uri, objects)
    finally:
        source.close()
    if not isinstance(layout, LevanterLayout):
        return None
    # The step itself, and the files at the top: the configuration and the tokenizer.
    inside = {*layout.weights, *(info for info in objects if "/" not in info.name)}
    versions = sorted([info.name, info.generation, info.size_bytes, info.crc32c] for info in inside)
    text = json.dumps([FORMAT, source.uri, list(sources), versions])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def write_conversion(folder: Path, located: LocatedCheckpoint, cache: CheckpointCache, progress: Progress) -> None:
    """Write a Levanter checkpoint as a Hugging Face snapshot into an empty folder.

    Raises:
        CheckpointError: the bytes are wrong or missing, or are not those of the configuration.
    """
    from safetensors.numpy import save_file  # comes with Levanter

    from service.checkpoint.load import read_levanter  # a start that converts nothing has no jax yet

    tensors, release = read_levanter(located, cache, progress)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "np"})
    release()
    (folder / CONFIG_JSON).write_text(json.dumps(dict(located.hub_config), indent=1))
    text_folder = pull_tokenizer(located, cache, progress).path
    for name in TOKENIZER_FILES:
        if (text_folder / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(text_folder / name, folder / name)
    if located.generation is not None:
        (folder / GENERATION_CONFIG).write_text(json.dumps(located.generation))
    (folder / CONVERSION_MARKER).write_text(json.dumps({"uri": located.uri}))
