"""One small text file that a setting names."""

from pathlib import Path

from service.errors import CheckpointError, SettingsError
from service.storage.location import GcsLocation, LocalLocation, parse_location
from service.storage.source import open_source


def read_text_file(uri: str, variable: str, *, max_bytes: int, cache_root: Path, emulator_host: str | None) -> str:
    """Return the text of a file.

    Args:
        uri: `gs://bucket/path` or a path.
        variable: the setting that names it.
        max_bytes: the most that a file in a bucket may have.
        cache_root: where sources keep what they have downloaded.
        emulator_host: of the store, for tests.

    Raises:
        SettingsError: there is no such file, or it cannot be read.
    """
    folder, _, name = uri.rpartition("/")
    location = parse_location(uri, variable)
    try:
        if isinstance(location, LocalLocation):
            return Path(location.path).read_text()
        if isinstance(location, GcsLocation) and folder != "gs:/":
            source = open_source(parse_location(folder, variable), cache_root=cache_root, emulator_host=emulator_host)
            files = [info for info in source.list() if info.name == name and info.size_bytes <= max_bytes]
            if files:
                return source.read(files[0]).decode()
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        raise SettingsError(variable, f"{uri} cannot be read: {error}") from error
    raise SettingsError(variable, f"there is no file {uri} of at most {max_bytes:,} bytes. Write gs://… or a path.")
