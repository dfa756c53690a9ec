"""Errors of finding, downloading and reading a checkpoint, which stop the start."""

from collections.abc import Sequence

from service.errors.start import StartError


class CheckpointError(StartError):
    """The checkpoint cannot be served."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri


class CheckpointNotFound(CheckpointError):
    """Nothing exists at the URI."""


class AccessDenied(CheckpointError):
    """The URI may exist, but the service's credentials do not allow reading it."""


class MissingFile(CheckpointError):
    """The checkpoint lacks a required file; the message names the setting that supplies one."""


class AmbiguousCheckpoint(CheckpointError):
    """The URI matches more than one checkpoint."""


class UnsupportedModel(CheckpointError):
    """The model's family, or a feature of its configuration, is not supported."""


class PickledWeights(CheckpointError):
    """The weights are pickled under names that are not served."""

    def __init__(self, uri: str, files: Sequence[str]) -> None:
        super().__init__(
            uri,
            f"the weights are pickled ({', '.join(files[:3])}{', …' if len(files) > 3 else ''}), and of such only "
            "pytorch_model.bin is served, or the files of pytorch_model.bin.index.json. Convert them once with "
            "transformers: AutoModelForCausalLM.from_pretrained(PATH).save_pretrained(NEW_PATH).",
        )
        self.files = tuple(files)


class MalformedCheckpoint(CheckpointError):
    """A file contradicts its header, its index or the model's configuration."""

    def __init__(self, uri: str, file: str, reason: str) -> None:
        super().__init__(uri, f"{file}: {reason}")
        self.file = file


class RefusedPickle(MalformedCheckpoint):
    """A file of pickled weights holds something else than tensors, or contradicts its bytes; nothing was executed."""

    def __init__(self, uri: str, file: str, reason: str, name: str | None) -> None:
        remedy = "Nothing in it was executed. Save a plain state_dict() with torch.save, or use safetensors."
        super().__init__(uri, file, f"{reason} {remedy}")
        self.name = name  # of the function, class, opcode or entry that is refused, if one is


class UnquantizableWeights(CheckpointError):
    """A tensor has a row that 8 bits do not represent, or a scale that is not a positive number."""

    def __init__(self, uri: str, tensor: str, reason: str) -> None:
        super().__init__(uri, f"{tensor}: {reason}. Repair the checkpoint, or serve one that is wide.")
        self.tensor = tensor


class HostileName(CheckpointError):
    """An object's name would be a path outside the cache."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(
            uri, f"the object name {name!r} {reason}; nothing was downloaded. Rename or delete the object."
        )
        self.name = name


class CorruptObject(CheckpointError):
    """The bytes received are not the bytes stored."""

    def __init__(
        self, uri: str, name: str, *, expected: str, actual: str, checksum: str = "crc32c", origin: str = "the bucket"
    ) -> None:
        cause = f"{name}: {checksum} is {actual}, {origin} says {expected}, twice in a row."
        super().__init__(uri, f"{cause} Nothing was kept. Try again; if the error persists, upload the object again.")
        self.name = name
        self.expected = expected
        self.actual = actual


class ObjectChanged(CheckpointError):
    """An object was overwritten or deleted while the checkpoint was being downloaded."""

    def __init__(self, uri: str, name: str, generation: int) -> None:
        cause = f"{name} was overwritten or deleted while it was being downloaded (generation {generation} is gone)."
        super().__init__(uri, f"{cause} Nothing was kept. Start again when the upload is complete.")
        self.name = name
        self.generation = generation


class NotDownloaded(CheckpointError):
    """A checkpoint is not on this machine, and the operator allows no download."""

    def __init__(self, uri: str) -> None:
        cause = "it is not in LOCAL_MODEL_CACHE, and AUTO_DOWNLOAD_MODELS is false."
        super().__init__(uri, f"{cause} Set it to true for one start, or MODEL_URI to a folder that holds it.")


class GenerationGone(CheckpointError):
    """An object of a bucket has no such generation as an operator pins it to."""

    def __init__(self, uri: str, name: str, generation: int) -> None:
        cause = f"{name} has no generation {generation}, to which MODELS_CONFIG pins it."
        super().__init__(uri, f"{cause} A bucket keeps what was overwritten only with object versioning.")
        self.name = name
        self.generation = generation


class TransferFailed(CheckpointError):
    """A transfer did not finish within its retries or its deadline."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(uri, f"{name}: {reason}")
        self.name = name


class StorageFull(CheckpointError):
    """The cache's file system has too little room."""

    def __init__(self, uri: str, *, needed_bytes: int, free_bytes: int, path: str) -> None:
        super().__init__(
            uri,
            f"{needed_bytes:,} bytes are needed under {path} and {free_bytes:,} are free. "
            "Free some space or set LOCAL_MODEL_CACHE to a larger disk.",
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
