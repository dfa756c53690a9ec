"""The caps on clients' requests, from the settings."""

from service.api.http.request_queue import Caps
from service.settings import Settings


def caps_of(settings: Settings) -> Caps:
    """Return the most that the requests of one process may take together."""
    return Caps(
        max_requests=settings.max_concurrent_requests,
        max_queue_size=settings.max_queue_size,
        max_queued_tokens=settings.max_queued_tokens,
        max_open_body_bytes=settings.max_open_body_bytes,
        queue_timeout_s=settings.queue_timeout,
        num_slots=settings.max_num_seqs,
    )
