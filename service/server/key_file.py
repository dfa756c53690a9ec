"""API keys from API_KEY and API_KEY_FILE; the file is reloaded whenever it changes.

- sk-plain-secret
- name: search
  secret: sk-another-secret
  weight: 2
  can_prioritize: true
"""

import logging
import math
import threading
from pathlib import Path
from typing import Any

from service.api.http.keys import ApiKey, ApiKeys, plain_keys
from service.errors import SettingsError
from service.settings import Settings

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 2.0
FIELDS = {"name", "secret", "weight", "can_prioritize"}
MAX_WEIGHT = 1000
MAX_NAME_CHARS = 64


def open_keys(settings: Settings, look_interval_s: float = LOOK_INTERVAL_S) -> ApiKeys:
    """Return the API keys, and watch their file if there is one.

    Raises:
        SettingsError: the file cannot be read, is empty or has an invalid key; the message contains no secret.
    """
    plain, path = plain_keys(settings.api_keys), settings.api_key_file
    if path is None:
        return ApiKeys(plain)
    state = _state(path)
    keys = ApiKeys(_all_keys(plain, path))
    arguments = (keys, plain, path, state, look_interval_s)
    threading.Thread(target=_watch, args=arguments, name="keys", daemon=True).start()
    return keys


def _watch(
    keys: ApiKeys, plain: tuple[ApiKey, ...], path: Path, state: tuple[int, ...] | None, look_interval_s: float
) -> None:
    never = threading.Event()
    while not never.wait(look_interval_s):
        if (new_state := _state(path)) == state:
            continue
        state = new_state
        try:
            keys.replace(_all_keys(plain, path))
        except SettingsError as error:
            logger.error("keeping the previous keys: %s", error)
        else:
            logger.info("keys reloaded", extra={"path": str(path)})


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _all_keys(plain: tuple[ApiKey, ...], path: Path) -> tuple[ApiKey, ...]:
    keys = (*plain, *_read(path))
    for field, values in (("name", [key.name for key in keys]), ("secret", [key.secret for key in keys])):
        if len(set(values)) < len(values):
            raise SettingsError("API_KEY_FILE", f"two keys, including those in API_KEY, have the same {field}.")
    return keys


def _read(path: Path) -> list[ApiKey]:
    """Read the file; errors never quote it, since any part may be a secret."""
    import yaml  # not needed without the file

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError("API_KEY_FILE", f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, yaml.YAMLError):
        raise SettingsError("API_KEY_FILE", f"{path} is not valid YAML or JSON.") from None
    if not isinstance(entries, list) or not entries:
        raise SettingsError("API_KEY_FILE", f"{path} is not a list of keys, or is empty.")
    return [_key(number, entry) for number, entry in enumerate(entries, start=1)]


def _key(number: int, entry: Any) -> ApiKey:
    fields = entry if isinstance(entry, dict) else {"secret": entry}
    name, secret = fields.get("name", f"file_key_{number}"), fields.get("secret")
    weight, can_prioritize = fields.get("weight", 1), fields.get("can_prioritize", False)
    for is_wrong, reason in (
        (not fields.keys() <= FIELDS, f"may only have {', '.join(sorted(FIELDS))}"),
        (not isinstance(secret, str) or not secret.strip(), "needs a nonblank `secret`"),
        (not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS,
         f"needs a `name` of 1 to {MAX_NAME_CHARS} printable characters"),
        (not _is_weight(weight), f"needs a `weight` above 0, and at most {MAX_WEIGHT}"),
        (not isinstance(can_prioritize, bool), "needs true or false as `can_prioritize`"),
    ):  # fmt: skip
        if is_wrong:
            raise SettingsError("API_KEY_FILE", f"key {number} {reason}.")
    return ApiKey(name, str(secret).strip(), float(weight), can_prioritize)


def _is_weight(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 < value <= MAX_WEIGHT
