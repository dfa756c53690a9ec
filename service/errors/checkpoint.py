"""Why a checkpoint cannot be served, raised by what finds, pulls or reads it."""

from collections.abc import Sequence

from service.errors.start import StartError


class CheckpointError(StartError):
    """The checkpoint cannot be served."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri


class CheckpointNotFound(CheckpointError):
    """There is nothing at this place."""


class AccessDenied(CheckpointError):
    """The place exists, or may, but we are not allowed to read it."""


class MissingFile(CheckpointError):
    """The checkpoint lacks a file that it needs; the message names the setting that supplies it."""


class AmbiguousCheckpoint(CheckpointError):
    """The place holds more than one thing that could be meant."""


class UnsupportedModel(CheckpointError):
    """The model's family, or a feature that its configuration asks for, is not served."""


class PickledWeights(CheckpointError):
    """The weights are pickles, which can run code and are never opened."""

    def __init__(self, uri: str, files: Sequence[str]) -> None:
        super().__init__(
            uri,
            f"the weights are pickled ({', '.join(files[:3])}{', …' if len(files) > 3 else ''}), and reading a pickle "
            "can run any code, so they are refused. Convert them once with transformers: "
            "AutoModelForCausalLM.from_pretrained(PATH).save_pretrained(NEW_PATH, safe_serialization=True).",
        )
        self.files = tuple(files)


class MalformedCheckpoint(CheckpointError):
    """A file does not hold what its header, its index or the model's configuration says."""

    def __init__(self, uri: str, file: str, reason: str) -> None:
        super().__init__(uri, f"{file}: {reason}")
        self.file = file


class HostileName(CheckpointError):
    """An object's name would lead outside the cache."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(
            uri, f"the object name {name!r} {reason}; nothing was downloaded. Rename or delete the object."
        )
        self.name = name


class CorruptObject(CheckpointError):
    """The bytes that came are not the bytes that were stored."""

    def __init__(self, uri: str, name: str, *, expected: str, actual: str) -> None:
        cause = f"{name}: crc32c is {actual}, the bucket says {expected}, twice in a row."
        super().__init__(uri, f"{cause} Nothing was kept. Try again; if it stays, upload the object anew.")
        self.name = name
        self.expected = expected
        self.actual = actual


class ObjectChanged(CheckpointError):
    """An object was overwritten or deleted while the checkpoint was being pulled."""

    def __init__(self, uri: str, name: str, generation: int) -> None:
        cause = f"{name} was overwritten or deleted while it was being pulled (generation {generation} is gone)."
        super().__init__(uri, f"{cause} Nothing was kept. Start again when the upload is complete.")
        self.name = name
        self.generation = generation


class TransferFailed(CheckpointError):
    """A transfer did not finish within its retries or its deadline."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(uri, f"{name}: {reason}")
        self.name = name


class StorageFull(CheckpointError):
    """The cache's file system has not enough room."""

    def __init__(self, uri: str, *, needed_bytes: int, free_bytes: int, path: str) -> None:
        super().__init__(
            uri,
            f"{needed_bytes:,} bytes are needed under {path} and {free_bytes:,} are free. "
            "Free some room or set LOCAL_MODEL_CACHE to a larger disk.",
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
