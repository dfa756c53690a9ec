"""The place of responses that the settings name."""

from service.api.memory.store import ResponseStore
from service.settings import Settings
from service.storage.store import open_store

OFF = "off"
FOLDER = "responses"  # in LOCAL_MODEL_CACHE


def open_responses(settings: Settings) -> ResponseStore | None:
    """Return the responses at STATE_URI; None if none are to be kept. Nothing is read yet.

    Raises:
        SettingsError: STATE_URI is malformed, or of a kind that cannot be written.
    """
    uri = settings.state_uri
    if uri is None:  # MODEL_STREAM says that files are memory here
        uri = OFF if settings.model_stream else str(settings.local_model_cache / FOLDER)
    if uri == OFF:
        return None
    return ResponseStore(
        open_store(uri, "STATE_URI", emulator_host=settings.storage_emulator_host),
        lifetime_s=settings.state_ttl,
        max_bytes=settings.state_total_bytes,
        max_conversation_bytes=settings.max_body_bytes,
    )
