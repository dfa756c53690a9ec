"""Layouts of checkpoints, detected by only their names: a Hugging Face snapshot, a Levanter run or one of its steps."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from service.checkpoint.foreign_files import PIPELINE, foreign_format
from service.errors import AmbiguousCheckpoint, CheckpointNotFound, PickledWeights
from service.storage.objects import ObjectInfo

# What a trainer saves beside a model. Source: transformers `trainer.py`, accelerate `checkpointing.py`
_OF_TRAINING = re.compile(r"(optimizer|scheduler|scaler|sampler|rng_state|random_states|training_args)[\w-]*\.")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
GENERATION_CONFIG = "generation_config.json"
# The files of a tokenizer, one of which it needs: any of these, or each of the last ones.
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
    "vocab.txt",
)
PAIR_OF_VOCABULARY = ("vocab.json", "merges.txt")
TOKENIZER_FILES = (
    *VOCABULARIES,
    *PAIR_OF_VOCABULARY,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja",
    "additional_chat_templates/rag.jinja",
    GENERATION_CONFIG,
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
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?(\.\w+)?\.bin")
_STEP_FOLDER = re.compile(r"step-(\d+)")
# A model for each step, as Levanter (`hf_save_path`) and the Trainer of transformers save them.
_EXPORT = re.compile(r"((?:step|checkpoint)-(\d+))/([^/]+)")
_SHARD = re.compile(r".+-\d+-of-(\d+)(?:\.\w+)?\.(?:safetensors|bin)")
CONFIG = "config.json"
# Beside a model, files of safetensors that hold no part of it.
_OTHERS = re.compile(
    r"(adapter_model|optimizer|scheduler|random_states|training_).*\.safetensors|.*\.lora\.safetensors"
)
MAX_SHOWN = 3


@dataclass(frozen=True)
class SnapshotLayout:
    """A Hugging Face snapshot: weights at the top, as safetensors or, without any, pickled."""

    weights: tuple[ObjectInfo, ...]
    index: Mapping[str, str] | None = None  # the file of each tensor, if an index names the files
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
    every = tuple(info for info in top if info.name.endswith(".safetensors"))
    pickled = tuple(info for info in top if _PICKLED.fullmatch(info.name))
    safetensors = tuple(info for info in every if not _OTHERS.fullmatch(info.name))
    levanter = _levanter(uri, objects)
    if safetensors and levanter:
        raise AmbiguousCheckpoint(
            uri,
            f"holds safetensors ({safetensors[0].name}) and a Levanter checkpoint ({levanter.folder or STEP_MARKER}). "
            "Set MODEL_URI to the step's own folder, or move one of them.",
        )
    if levanter:
        return levanter
    if weights := safetensors or pickled or every:
        return SnapshotLayout(weights, is_conversion=any(info.name == CONVERSION_MARKER for info in top))
    raise _nothing_found(uri, objects, top)


def newest_export(objects: Iterable[ObjectInfo]) -> str | None:
    """Return the folder of the newest step of which a folder holds a whole model; None if it holds a model itself.

    A folder is whole if it has a configuration and all files of the weights.
    """
    steps: dict[tuple[int, str], set[str]] = {}
    for info in objects:
        if match := _EXPORT.fullmatch(info.name):
            steps.setdefault((int(match[2]), match[1]), set()).add(match[3])
        elif "/" not in info.name and (info.name.endswith(".safetensors") or _PICKLED.fullmatch(info.name)):
            return None
    if any(STEP_MARKER in names for names in steps.values()):
        return None  # Levanter's own
    return next((folder for (_, folder), names in sorted(steps.items(), reverse=True) if _is_whole(names)), None)


def _is_whole(names: Set[str]) -> bool:
    counts: dict[int, int] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            counts[int(match[1])] = counts.get(int(match[1]), 0) + 1
    is_sharded = any(count == found for count, found in counts.items()) and not names.isdisjoint((INDEX, PICKLED_INDEX))
    return CONFIG in names and (is_sharded or not names.isdisjoint(("model.safetensors", "pytorch_model.bin")))


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
    steps = {step for step in steps if step in complete or f"step-{step}/{CONFIG}" not in names}  # no exports
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
    is_pipeline = any(info.name == PIPELINE for info in top)
    folders = (
        []
        if is_pipeline
        else sorted({info.name.rpartition("/")[0] for info in objects if _is_weight(info.name)} - {""})
    )
    below = ""
    if folders:
        shown = ", ".join(map(repr, folders[:MAX_SHOWN]))
        more = f" and {len(folders) - MAX_SHOWN} more" if len(folders) > MAX_SHOWN else ""
        choice = "one of these folders, or CATALOGUE_URI to this one" if len(folders) > 1 else "that folder"
        below = f" There are weights below it, in {shown}{more}: set MODEL_URI to {choice}."
    known = foreign_format([info.name for info in (top if folders else objects)])
    if known is not None:
        return CheckpointNotFound(uri, f"holds {known[0]}, which is not served. {known[1]}.{below}")
    pickles = [info.name for info in top if info.name.endswith(PICKLE_SUFFIXES) and not _OF_TRAINING.match(info.name)]
    if pickles:
        return PickledWeights(uri, pickles)
    found = ", ".join([*(info.name for info in objects[:MAX_SHOWN]), *(["…"] if len(objects) > MAX_SHOWN else [])])
    hint = below or " Name the folder that holds config.json, the weights and tokenizer.json."
    return CheckpointNotFound(
        uri, f"holds no *.safetensors and no Levanter step-N with {STEP_MARKER}; it has {found}.{hint}"
    )


def _is_weight(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.endswith(".safetensors") or _PICKLED.fullmatch(base) is not None
