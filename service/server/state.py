"""The stores of what outlives an instance, by the settings that name them."""

from service.api.memory.store import ResponseStore
from service.settings import Settings
from service.storage.store import ObjectStore, open_store

OFF = "off"


def state_store(settings: Settings, uri: str | None, variable: str, folder: str) -> ObjectStore | None:
    """Return the store at an address; None if there is to be none. Nothing is read yet.

    Args:
        settings: the cache, and the emulator of a bucket.
        uri: the address; None for a folder in LOCAL_MODEL_CACHE, and with MODEL_STREAM for none.
        variable: the setting that states the address, for the message.
        folder: the name of that folder.

    Raises:
        SettingsError: the address is malformed, or of a kind that cannot be written.
    """
    if uri is None:  # MODEL_STREAM says that files are memory here
        uri = OFF if settings.model_stream else str(settings.local_model_cache / folder)
    return None if uri == OFF else open_store(uri, variable, emulator_host=settings.storage_emulator_host)


def open_responses(settings: Settings) -> ResponseStore | None:
    """Return the responses at STATE_URI; None if none are to be kept. Raises SettingsError."""
    store = state_store(settings, settings.state_uri, "STATE_URI", "responses")
    if store is None:
        return None
    return ResponseStore(
        store,
        lifetime_s=settings.state_ttl,
        max_bytes=settings.state_total_bytes,
        max_conversation_bytes=settings.max_body_bytes,
    )
