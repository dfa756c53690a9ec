"""A bundle: the serialized executables of one engine, and a manifest with their inputs and checksums.

An executable is a pickle that contains native code, so unpickling it may run anything. It is unpickled only after its
sha256 matches the manifest. The manifest is plain JSON; file names in it cannot escape the bundle.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from service.bundles.signature import UNSIGNED, Signer
from service.errors import ServiceError

if TYPE_CHECKING:  # these import jax, beside whose import a start reads its last bundle
    from service.bundles.key import BundleKey
    from service.compile.program import Executable

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
OTHERS_MAY_WRITE = 0o022


class BundleRefused(ServiceError):
    """A bundle cannot be used; the executables are compiled instead."""

    def __init__(self, uri: str, outcome: Literal["corrupt", "stale", "unsigned"], reason: str) -> None:
        super().__init__(f"{uri}: the bundle {reason}")
        self.uri = uri
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BundledFile:
    """The file of one executable."""

    file: str  # contains a digest of the content, so that concurrent writers cannot interleave
    sha256: str
    size_bytes: int
    compile_seconds: float


@dataclass(frozen=True)
class Manifest:
    """The index of a bundle."""

    key: str
    inputs: Mapping[str, Any]  # everything that the key digests
    executables: Mapping[str, BundledFile]  # by the executable's name
    making: Mapping[str, Any]  # the weight recipe, and sizes and timings of the start that built the bundle

    def to_json(self, signer: Signer = UNSIGNED) -> bytes:
        return json.dumps(signer.signed({"format_version": FORMAT_VERSION, **asdict(self)}), indent=1).encode()

    @classmethod
    def parse(cls, uri: str, data: bytes, key: "BundleKey", signer: Signer = UNSIGNED) -> "Manifest":
        """Parse and verify a manifest.

        Args:
            uri: the location of the bundle, for error messages.
            data: the bytes of the manifest.
            key: the expected key.
            signer: verifies the signature.

        Raises:
            BundleRefused: the bytes are not a manifest, or its format, inputs or signature do not match.
        """
        try:
            content = json.loads(data)
            if content["format_version"] != FORMAT_VERSION:
                raise BundleRefused(uri, "stale", f"is of format {content['format_version']!r}, not {FORMAT_VERSION}")
            if not signer.verifies(content):
                raise BundleRefused(uri, "unsigned", "is not signed with a BUNDLE_SIGNING_KEY")
            files = {str(name): BundledFile(**file) for name, file in content["executables"].items()}
            manifest = cls(str(content["key"]), content["inputs"], files, content["making"])
            names = [file.file for file in files.values()]
            are_well_named = all(isinstance(name, str) and FILE_NAME.fullmatch(name) for name in names)
            differences = key.differences(manifest.inputs)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BundleRefused(uri, "corrupt", f"{MANIFEST_NAME} is not a manifest") from error
        if not are_well_named:
            raise BundleRefused(uri, "corrupt", f"{MANIFEST_NAME} names a file outside of the bundle")
        if differences or manifest.key != key.digest:
            raise BundleRefused(uri, "stale", f"was built for a different target: {', '.join(differences) or 'key'}")
        return manifest

    def check(self, uri: str, name: str, data: bytes | None, sha256: Callable[[bytes], str] | None = None) -> bytes:
        """Verify one executable's bytes before they are unpickled.

        Args:
            uri: the location of the bundle, for error messages.
            name: the executable's name.
            data: the bytes, or None if the file is missing.
            sha256: computes the hexadecimal SHA-256 of bytes; hashlib's by default.

        Raises:
            BundleRefused: the bytes are missing or do not match the manifest.
        """
        expected = self.executables[name]
        if data is None:
            raise BundleRefused(uri, "corrupt", f"{expected.file} is missing")
        if len(data) != expected.size_bytes:
            raise BundleRefused(uri, "corrupt", f"{expected.file} has {len(data)} bytes, not {expected.size_bytes}")
        actual = (sha256 or _sha256)(data)
        if actual != expected.sha256:
            raise BundleRefused(uri, "corrupt", f"{expected.file} has the sha256 {actual}, not {expected.sha256}")
        return data


@dataclass(frozen=True)
class Bundle:
    """A manifest and the verified bytes of its executables."""

    manifest: Manifest
    data: Mapping[str, bytes]  # by the executable's name

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for data in self.data.values())

    @property
    def has_run(self) -> bool:
        """Whether the executables have run on such a device; those that were compiled without one have not."""
        return bool(self.manifest.making.get("has_run", False))

    def files(self, signer: Signer = UNSIGNED) -> dict[str, bytes]:
        """Return all files by name, the manifest last because writing it makes the bundle visible."""
        executables = {self.manifest.executables[name].file: data for name, data in self.data.items()}
        return executables | {MANIFEST_NAME: self.manifest.to_json(signer)}


def inputs_of(data: bytes) -> Mapping[str, Any] | None:
    """Return the inputs of any manifest, or None if the bytes are not a manifest."""
    try:
        inputs = json.loads(data)["inputs"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return inputs if isinstance(inputs, dict) else None


def make_bundle(
    key: "BundleKey",
    executables: "Mapping[str, Executable]",
    seconds: Mapping[str, float],
    making: Mapping[str, Any],
    serialized: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Serialize executables into a bundle.

    Args:
        key: everything that the executables depend on.
        executables: the executables by name.
        seconds: the compile time of each.
        making: plain JSON about how they were built.
        serialized: the bytes of executables that were loaded; on a CPU, those cannot be serialized again.
    """
    known = serialized or {}
    data = {name: known[name] if name in known else item.serialize() for name, item in executables.items()}
    files = {name: describe_file(name, content, seconds[name]) for name, content in data.items()}
    return Bundle(Manifest(key.digest, key.inputs, files, making), data)


def bundle_that_ran(bundle: Bundle, compiled: "Mapping[str, Executable]", seconds: Mapping[str, float]) -> Bundle:
    """Return a bundle whose manifest says that its executables have run on such a device.

    Args:
        bundle: the bundle as it was found.
        compiled: executables in place of those that did not load, by name.
        seconds: the compile time of each of these.
    """
    data = {name: item.serialize() for name, item in compiled.items()}
    files = {name: describe_file(name, content, seconds[name]) for name, content in data.items()}
    manifest = bundle.manifest
    making = {**manifest.making, "has_run": True}
    return Bundle(
        replace(manifest, executables={**manifest.executables, **files}, making=making), {**bundle.data, **data}
    )


def describe_file(name: str, data: bytes, compile_seconds: float) -> BundledFile:
    """Return the manifest entry of a serialized executable."""
    digest = _sha256(data)
    return BundledFile(f"{name}-{digest[:12]}.executable", digest, len(data), round(compile_seconds, 3))


def check_owner(uri: str, *folders: Path) -> None:
    """Check that no other user of this machine could have written the code that is about to run.

    Raises:
        BundleRefused: another user can write to one of the folders.
        OSError: a folder cannot be read.
    """
    for path in folders:
        status = path.stat()
        if status.st_mode & OTHERS_MAY_WRITE or status.st_uid not in (0, os.geteuid()):
            reason = f"{path} is writable by other users, so its code is not run; chmod 700 it"
            raise BundleRefused(uri, "corrupt", reason)


def check_names(uri: str, manifest: Manifest, needed: Iterable[str]) -> None:
    """Check that a bundle contains every needed executable.

    Raises:
        BundleRefused: an executable is missing.
    """
    if missing := sorted(set(needed) - manifest.executables.keys()):
        raise BundleRefused(uri, "corrupt", f"lacks {len(missing)} executables such as {missing[0]}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
