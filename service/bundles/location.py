"""Resolution of BUNDLE_URI: where instances share bundles and converted weights."""

from pathlib import Path

from service.errors import SettingsError
from service.settings import Settings
from service.storage.location import GcsLocation, LocalLocation, parse_location

LOCAL_FOLDER = "bundles"
SIBLING = "sibling"
SIBLING_FOLDER = ".levserve-bundles"


def local_folder(settings: Settings) -> Path:
    """Return this machine's folder for bundles."""
    return settings.local_model_cache.expanduser().absolute() / LOCAL_FOLDER


def shared_location(bundle_uri: str | None, checkpoint_uri: str) -> GcsLocation | LocalLocation | None:
    """Return the location in BUNDLE_URI, or None if bundles are not shared.

    Raises:
        SettingsError: BUNDLE_URI is malformed or cannot be written to.
    """
    uri = sibling_uri(checkpoint_uri) if bundle_uri == SIBLING else bundle_uri
    if uri is None:
        return None
    location = parse_location(uri, "BUNDLE_URI")
    if isinstance(location, GcsLocation | LocalLocation):
        return location
    raise SettingsError("BUNDLE_URI", f"{uri!r} cannot be written to. Write gs://bucket/prefix or a path.")


def sibling_uri(checkpoint_uri: str) -> str | None:
    """Return the folder for bundles next to a checkpoint, or None if the checkpoint has no parent folder."""
    match parse_location(checkpoint_uri):
        case GcsLocation(bucket, prefix) if prefix:
            return "/".join(["gs:/", bucket, *prefix.split("/")[:-1], SIBLING_FOLDER])
        case LocalLocation(path):
            return str(path.parent / SIBLING_FOLDER)
        case _:
            return None
