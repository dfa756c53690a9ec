"""Parsing of checkpoint addresses: a bucket, the Hugging Face Hub or a folder."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from service.errors import SettingsError

SUPPORTED_FORMS = "gs://bucket/prefix, hf://org/name[/folder][@revision], or a path"

# Source: https://cloud.google.com/storage/docs/buckets#naming
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_HUB_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# In the address of a page these follow the repository.
_HUB_FOLDER = re.compile(r"(?!(?:tree|blob|resolve)(?:/|$))[\w-][\w.-]*(/[\w-][\w.-]*)*")
_HUB_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
_HUB_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[\w.-]+).*|[/?#].*)?",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


@dataclass(frozen=True, slots=True)
class GcsLocation:
    """A folder of a Google Cloud Storage bucket."""

    bucket: str
    prefix: str  # without a slash at either end; empty for the whole bucket

    @property
    def uri(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}" if self.prefix else f"gs://{self.bucket}"


@dataclass(frozen=True, slots=True)
class HubLocation:
    """A model repository of the Hugging Face Hub, or a folder of one."""

    repo: str  # org/name
    revision: str | None = None  # a branch, a tag or a commit; None for the default branch
    folder: str = ""  # without a slash at either end; empty for the whole repository

    @property
    def uri(self) -> str:
        folder = f"/{self.folder}" if self.folder else ""
        return f"hf://{self.repo}{folder}@{self.revision}" if self.revision else f"hf://{self.repo}{folder}"


@dataclass(frozen=True, slots=True)
class LocalLocation:
    """A local or mounted folder."""

    path: Path  # absolute

    @property
    def uri(self) -> str:
        return str(self.path)


Location = GcsLocation | HubLocation | LocalLocation


def parse_location(uri: str, variable: str = "MODEL_URI") -> Location:
    """Parse an address.

    Args:
        uri: `gs://bucket/prefix`, `hf://org/name[/folder][@revision]`, `file:///path`, or an absolute, relative or `~`
            path.
        variable: the setting that the address comes from, for the error message.

    Raises:
        SettingsError: the address is malformed or its scheme is not supported.
    """
    text = uri.strip()
    if not text or "\0" in text:
        raise SettingsError(variable, f"{uri!r} is not an address. Write {SUPPORTED_FORMS}.")
    match = _SCHEME.match(text)
    if match is None:
        return _local(text, variable)
    scheme, rest = match[1].lower(), text[match.end() :].removeprefix("/")
    if text[match.end() : match.end() + 1] != "/":
        raise SettingsError(variable, f"{uri!r} has one slash after '{scheme}:' instead of two.")
    if scheme == "gs":
        return _gcs(rest, uri, variable)
    if scheme == "hf":
        return _hub(rest, uri, variable)
    if scheme == "file":
        if not rest.startswith("/"):
            raise SettingsError(variable, f"{uri!r} names another machine. Write file:///absolute/path.")
        return _local(unquote(rest), variable)
    if (page := _HUB_PAGE.fullmatch(text)) is not None:
        revision = f"@{page['revision']}" if page["revision"] else ""
        raise SettingsError(variable, f"{uri!r} is a page of the Hub. Did you mean hf://{page['repo']}{revision}?")
    raise SettingsError(variable, f"{uri!r}: '{scheme}://' is not supported. Write {SUPPORTED_FORMS}.")


def _gcs(rest: str, uri: str, variable: str) -> GcsLocation:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        reason = f"'{bucket}' cannot be the name of a bucket" if bucket else "the bucket is missing"
        raise SettingsError(variable, f"{uri!r}: {reason}. Write gs://bucket/prefix.")
    return GcsLocation(bucket, prefix.strip("/"))


def _hub(rest: str, uri: str, variable: str) -> HubLocation:
    name, at, revision = rest.strip("/").partition("@")
    repo, folder = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:])
    is_named = _HUB_REPO.fullmatch(repo) and (not folder or _HUB_FOLDER.fullmatch(folder))
    if not is_named or (at and not _HUB_REVISION.fullmatch(revision)):
        raise SettingsError(
            variable, f"{uri!r} does not name a repository and revision. Write hf://org/name or hf://org/name@revision."
        )
    return HubLocation(repo, revision or None, folder)


def _local(text: str, variable: str) -> LocalLocation:
    try:
        return LocalLocation(Path(text).expanduser().absolute())
    except RuntimeError as error:
        raise SettingsError(variable, f"{text!r}: this user has no home folder. Write an absolute path.") from error
