"""Errors in finding, downloading and reading a checkpoint, which abort the start."""

import re
from collections.abc import Sequence
from pathlib import Path

from service.errors.start import StartError

# An address of a bucket, or an absolute path.
ADDRESS = re.compile(r"\w+://|(?<![\w.])/\w")
EXAMPLE = "hf://org/name"  # in messages that say how to name a repository


class CheckpointError(StartError):
    """The checkpoint cannot be served."""

    is_of_files = False  # whether the message speaks only of the checkpoint's own files

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri

    @property
    def shown(self) -> str | None:
        """The reason for those who may not get addresses; None if it says more than what is wrong with the files."""
        own = str(self).replace(f"{self.uri}: ", "", 1)
        has_address = self.uri in own or ADDRESS.search(own.replace(EXAMPLE, "")) is not None
        return own if self.is_of_files and not has_address else None


class CheckpointNotFound(CheckpointError):
    """Nothing exists at the URI."""


class AccessDenied(CheckpointError):
    """The URI may exist, but the service's credentials do not allow reading it."""


class MissingFile(CheckpointError):
    """The checkpoint lacks a required file; the message names the setting that supplies one."""

    is_of_files = True


class MissingExtra(CheckpointError):
    """The checkpoint needs an optional part of Levserve that is not installed."""

    def __init__(self, uri: str, reason: str, extra: str) -> None:
        super().__init__(uri, f"{reason}. {self.remedy(extra)}")
        self.extra = extra

    @staticmethod
    def remedy(extra: str) -> str:
        """Return how to install an extra here: in a clone, with the uv of its Makefile."""
        clone = Path(__file__).parents[2]
        if not (clone / "uv.lock").is_file():
            return f"Run: pip install 'FOLDER[{extra}]', where FOLDER is a clone of Levserve."
        where = "" if Path.cwd() == clone else f"cd {clone} && "
        # The default group is that of developers, and without --inexact other extras would be removed.
        return f"Run: {where}.tools/uv/bin/uv sync --inexact --extra {extra} --no-default-groups --frozen"


class AmbiguousCheckpoint(CheckpointError):
    """The URI matches more than one checkpoint."""

    is_of_files = True


class UnsupportedModel(CheckpointError):
    """The model's family, or a feature of its configuration, is not supported."""

    is_of_files = True


class PickledWeights(CheckpointError):
    """The weights are pickled in files with unsupported names."""

    is_of_files = True

    def __init__(self, uri: str, files: Sequence[str]) -> None:
        super().__init__(
            uri,
            f"the weights are pickled in unsupported files ({', '.join(files[:3])}{', …' if len(files) > 3 else ''}). "
            "Supported are pytorch_model.bin and the files of pytorch_model.bin.index.json. Rename a file that is the "
            "model's whole state_dict(); of any other, load the model and call its save_pretrained(NEW_PATH).",
        )
        self.files = tuple(files)


class MalformedCheckpoint(CheckpointError):
    """A file contradicts its header, its index or the model's configuration."""

    is_of_files = True

    def __init__(self, uri: str, file: str, reason: str) -> None:
        super().__init__(uri, f"{file}: {reason}")
        self.file = file


class RefusedAdapter(CheckpointError):
    """An adapter is of another model, or of a kind that is not served."""

    is_of_files = True

    def __init__(self, uri: str, file: str, field: str, reason: str) -> None:
        super().__init__(uri, f"{file}: {field}: {reason}.")
        self.file, self.field = file, field  # a key of the configuration, or a tensor


class RefusedPickle(MalformedCheckpoint):
    """A file of pickled weights contains something other than tensors, or is inconsistent; nothing was executed."""

    def __init__(self, uri: str, file: str, reason: str, name: str | None) -> None:
        remedy = "Nothing in it was executed. Save a plain state_dict() with torch.save, or use safetensors."
        super().__init__(uri, file, f"{reason} {remedy}")
        self.name = name  # of the refused function, class, opcode or entry, if any


class UnquantizableWeights(CheckpointError):
    """A tensor has a row that 8 bits cannot represent, or a scale that is not a positive number."""

    is_of_files = True

    def __init__(self, uri: str, tensor: str, reason: str) -> None:
        super().__init__(uri, f"{tensor}: {reason}. Repair the checkpoint, or serve an unquantized one.")
        self.tensor = tensor


class NonFiniteWeights(CheckpointError):
    """A model's first answer is NaN or infinite, because its weights are or because the type is too narrow."""

    is_of_files = True

    def __init__(self, uri: str, tensors: Sequence[str], *, num_more: int, dtype: str) -> None:
        if tensors:
            more = f" and {num_more} more" if num_more else ""
            cause = f"{', '.join(tensors)}{more}: has a value that is NaN or infinite, and so has every answer."
            remedy = "Save the model again from a checkpoint before its training diverged, or repair the tensor."
        else:
            cause = f"the weights are finite in {dtype}, but what the model computes of them is NaN or infinite."
            remedy = "Set DTYPE to bfloat16 or float32, or repair the checkpoint."
        super().__init__(uri, f"{cause} {remedy}")
        self.tensors = tuple(tensors)


class HostileName(CheckpointError):
    """An object's name is not safe as a path in the cache."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(
            uri, f"the object name {name!r} {reason}; nothing was downloaded. Rename or delete the object."
        )
        self.name = name


class CorruptObject(CheckpointError):
    """The received bytes do not match the stored checksum."""

    def __init__(
        self, uri: str, name: str, *, expected: str, actual: str, checksum: str = "crc32c", origin: str = "the bucket"
    ) -> None:
        cause = f"{name}: {checksum} is {actual}, {origin} says {expected}, twice in a row."
        remedy = "Nothing was saved. Try again; if the error persists, upload the object again."
        super().__init__(uri, f"{cause} {remedy}")
        self.name = name
        self.expected = expected
        self.actual = actual


class ObjectChanged(CheckpointError):
    """An object was overwritten or deleted while the checkpoint was being downloaded."""

    def __init__(self, uri: str, name: str, generation: int) -> None:
        cause = f"{name} was overwritten or deleted while it was being downloaded (generation {generation} is gone)."
        super().__init__(uri, f"{cause} Nothing was saved. Start again when the upload is complete.")
        self.name = name
        self.generation = generation


class NotDownloaded(CheckpointError):
    """A checkpoint is not on this machine, and downloads are disabled."""

    def __init__(self, uri: str) -> None:
        cause = "it is not in LOCAL_MODEL_CACHE, and AUTO_DOWNLOAD_MODELS is false."
        super().__init__(uri, f"{cause} Set it to true for one start, or MODEL_URI to a folder with the checkpoint.")


class GenerationGone(CheckpointError):
    """An object does not have the generation that the operator pinned it to."""

    def __init__(self, uri: str, name: str, generation: int) -> None:
        cause = f"{name} has no generation {generation}, to which MODELS_CONFIG pins it."
        super().__init__(uri, f"{cause} Buckets retain overwritten objects only with object versioning.")
        self.name = name
        self.generation = generation


class TransferFailed(CheckpointError):
    """A transfer exhausted its retries or its deadline."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(uri, f"{name}: {reason}")
        self.name = name


class StorageFull(CheckpointError):
    """The cache's file system has too little space."""

    def __init__(self, uri: str, *, needed_bytes: int, free_bytes: int, path: str) -> None:
        super().__init__(
            uri,
            f"{needed_bytes:,} bytes are needed under {path} and {free_bytes:,} are free. "
            "Free some space or set LOCAL_MODEL_CACHE to a larger disk.",
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
