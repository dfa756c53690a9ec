"""The manifest of a batch in shards: counts, usage and missing chunks, summed over all parts."""

import time
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from service.api.batch.records import COUNTED, is_success, tokens_of
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.file_set import FileSet
from service.offline.batch_file import BatchFileError
from service.offline.shards.chunks import CHUNK_BYTES, CHUNK_LINES, CHUNK_TOKENS, BatchInput
from service.offline.shards.parts import Parts
from service.settings import Settings
from service.storage.local import LocalSource

# What answers depend on besides the checkpoint's files.
SETTINGS = (
    "adapter_uri",
    "chat_template",
    "default_chat_template_kwargs",
    "default_max_tokens",
    "default_temperature",
    "dtype",
    "kv_dtype",
    "max_image_tokens",
    "max_model_len",
    "model_config_uri",
    "quantization",
    "reasoning_parser",
    "tokenizer_uri",
    "tool_call_parser",
)


def job_of(source: BatchInput, checkpoint: LocatedCheckpoint, settings: Settings) -> dict[str, Any]:
    """Return what the answers depend on, which must be the same for all parts."""
    files = [{"name": file.name, "size_bytes": file.size_bytes, "crc32c": file.crc32c} for file in source.files]
    adapter = None if checkpoint.adapter is None else _version(checkpoint.adapter.files)
    return {
        "input": files,
        "chunks": {"lines": CHUNK_LINES, "tokens": CHUNK_TOKENS, "bytes": CHUNK_BYTES},
        "checkpoint": {"uri": checkpoint.uri, "version": _version(checkpoint.weights), "adapter": adapter},
        "settings": {name.upper(): getattr(settings, name) for name in SETTINGS},
    }


def sum_up(source: BatchInput, parts: Parts, job: dict[str, Any]) -> dict[str, Any]:
    """Read all parts that there are and return the manifest.

    Args:
        source: the input.
        parts: the place of the answers.
        job: from `job_of`.

    Raises:
        BatchFileError: a part does not have an answer for each line of its chunk.
    """
    counts: dict[str, int] = dict.fromkeys(("succeeded", "failed"), 0)
    tokens: dict[str, int] = dict.fromkeys(COUNTED, 0)
    listed = []
    present = parts.present()
    for chunk in source.chunks:
        if chunk.number not in present:
            continue
        num_rows = 0
        for answer in parts.rows(chunk.number):
            num_rows += 1
            if not is_success(answer):
                counts["failed"] += 1
                continue
            counts["succeeded"] += 1
            for name, num in tokens_of(answer["response"]["body"].get("usage") or {}).items():
                tokens[name] += num
        name = parts.name_of(chunk.number)
        if num_rows != chunk.num_lines:
            reason = f"has {num_rows} answers to {chunk.num_lines} lines. Delete it and run again."
            raise BatchFileError(f"{parts.uri}/{name}", 0, reason)
        place = {"input": chunk.file.name, "first_line": chunk.first_line, "lines": chunk.num_lines}
        listed.append({"name": name, **place})
    generations = {file.name: file.generation for file in source.files}
    return {
        **job,
        "input_uri": source.uri,
        "input": [{**file, "generation": generations[file["name"]]} for file in job["input"]],
        "counts": {"lines": source.num_lines, **counts},
        "usage": tokens,
        "parts": listed,
        "missing": [parts.name_of(chunk.number) for chunk in source.chunks if chunk.number not in present],
        "created_at": int(time.time()),
        "levserve": version("levserve"),
    }


def _version(files: FileSet) -> str:
    """Return a digest of a checkpoint's files, for a folder without times, which each copy of it has its own of."""
    if isinstance(files.source, LocalSource):
        untimed = tuple(replace(info, generation=0) for info in files.objects)
        return replace(files, objects=untimed).version
    return files.version
