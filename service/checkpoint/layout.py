"""Layouts of checkpoints, detected by names alone: a Hugging Face snapshot, a Levanter run or one of its steps."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.errors import AmbiguousCheckpoint, CheckpointNotFound, PickledWeights
from service.storage.objects import ObjectInfo

GGUF_SUFFIX = ".gguf"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
)
# Levanter writes this file last, so a step that has it is complete.
STEP_MARKER = "metadata.json"
# `levserve prewarm` writes this file last, so a conversion that has it is complete.
CONVERSION_MARKER = "CONVERTED.json"
INDEX = "model.safetensors.index.json"
PICKLED_INDEX = "pytorch_model.bin.index.json"
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_STEP_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class SnapshotLayout:
    """A Hugging Face snapshot: weights at the top, as safetensors or, without any, pickled."""

    weights: tuple[ObjectInfo, ...]
    is_conversion: bool = False  # of a Levanter run: weights are in the run's dtype, whatever `config.json` names

    @property
    def is_pickled(self) -> bool:
        """Whether the weights are pickled."""
        return any(_PICKLED.fullmatch(info.name) for info in self.weights)


@dataclass(frozen=True)
class LevanterLayout:
    """One complete step of a Levanter run."""

    step: int | None  # None if the address is a step whose name is not step-N
    folder: str  # relative to the location, with a slash at its end; empty if the address names the step
    weights: tuple[ObjectInfo, ...]


Layout = SnapshotLayout | LevanterLayout


def detect_layout(uri: str, objects: Sequence[ObjectInfo]) -> Layout:
    """Detect the layout of the checkpoint in a listing.

    Raises:
        PickledWeights: the weights are pickled, in files that are not served.
        AmbiguousCheckpoint: the listing holds both layouts.
        CheckpointNotFound: it holds neither, or no Levanter step is complete.
    """
    top = [info for info in objects if "/" not in info.name]
    safetensors = tuple(info for info in top if info.name.endswith(".safetensors"))
    levanter = _levanter(uri, objects)
    if safetensors and levanter:
        raise AmbiguousCheckpoint(
            uri,
            f"holds safetensors ({safetensors[0].name}) and a Levanter checkpoint ({levanter.folder or STEP_MARKER}). "
            "Set MODEL_URI to the step's own folder, or move one of them.",
        )
    if levanter:
        return levanter
    if weights := safetensors or tuple(info for info in top if _PICKLED.fullmatch(info.name)):
        return SnapshotLayout(weights, any(info.name == CONVERSION_MARKER for info in top))
    raise _nothing_found(uri, objects, top)


def named(objects: Iterable[ObjectInfo], names: Iterable[str], folder: str = "") -> tuple[ObjectInfo, ...]:
    """Return the objects of a folder that have one of these names."""
    wanted = {folder + name for name in names}
    return tuple(info for info in objects if info.name in wanted)


def _levanter(uri: str, objects: Sequence[ObjectInfo]) -> LevanterLayout | None:
    names = {info.name for info in objects}
    if STEP_MARKER in names and ("manifest.ocdbt" in names or any(name.startswith("model/") for name in names)):
        match = _STEP_FOLDER.fullmatch(uri.rstrip("/").rsplit("/", 1)[-1])
        return LevanterLayout(int(match[1]) if match else None, "", tuple(objects))
    steps = {int(match[1]) for name in names if (match := _STEP_FOLDER.match(name)) and "/" in name}
    complete = {step for step in steps if f"step-{step}/{STEP_MARKER}" in names}
    if steps and not complete:
        raise CheckpointNotFound(
            uri,
            f"holds {len(steps)} Levanter steps and none is complete (each lacks {STEP_MARKER}, which Levanter writes "
            "last). Wait for the save to finish, or choose another run.",
        )
    if not complete:
        return None
    folder = f"step-{max(complete)}/"
    return LevanterLayout(max(complete), folder, tuple(info for info in objects if info.name.startswith(folder)))


def _nothing_found(
    uri: str, objects: Sequence[ObjectInfo], top: Sequence[ObjectInfo]
) -> CheckpointNotFound | PickledWeights:
    pickles = [info.name for info in top if info.name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return PickledWeights(uri, pickles)
    ggufs = [info.name for info in objects if info.name.endswith(GGUF_SUFFIX)]
    if ggufs:
        reason = f"holds GGUF ({ggufs[0]}), which is not read. Serve the safetensors that it was made from"
        return CheckpointNotFound(uri, f"{reason}: org/name of the Hub, or a folder of them.")
    deeper = sorted({info.name.rsplit("/", 1)[0] for info in objects if info.name.endswith(".safetensors")})
    hint = "Name the folder that holds config.json, the weights and tokenizer.json."
    if deeper:
        hint = f"There are safetensors below it, in {deeper[0]!r}: set MODEL_URI to that folder."
    shown = ", ".join([*(info.name for info in objects[:3]), *(["…"] if len(objects) > 3 else [])])
    return CheckpointNotFound(
        uri, f"holds no *.safetensors and no Levanter step-N with {STEP_MARKER}; it has {shown}. {hint}"
    )
