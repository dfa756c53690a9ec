"""A service for a browser: the pages, and the API over an engine that follows a script, in any state of its start."""

import asyncio
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from service.api.batch.batches import Batches
from service.api.batch.files import Files
from service.errors import NotReady
from service.observability.metrics import Metrics
from service.storage.folder_store import FolderStore
from tests.api.hearing.scripted_speech import SpeechService
from tests.api.scripted_engine import Service
from tests.api.vectors.scripted_encoder import EncoderService
from tests.server.early_app import early_app

STARTED = {
    "phase": "complete",
    "seconds": 4.2,
    "percent": 100,
    "estimated_seconds_left": 0.0,
    "phases_done_seconds": {"import": 1.1, "locate": 0.1, "weights": 1.5, "executables": 1.9, "warm": 0.2},
    "phases_running_seconds": {},
    "bytes_done": 12_000_000,
    "bytes_total": 12_000_000,
    "executables_done": 24,
    "executables_total": 24,
}
STARTING = STARTED | {
    "phase": "weights, executables",
    "seconds": 2.4,
    "percent": 44,
    "estimated_seconds_left": 3.0,
    "phases_done_seconds": {"import": 1.1, "locate": 0.1},
    "phases_running_seconds": {"weights": 1.0, "executables compile": 0.9},
    "bytes_done": 4_600_000,
    "executables_done": 7,
}


def chat_service(folder, **settings):
    """Return a service of a chat model, with batches."""
    store = FolderStore(Path(folder))
    batches = Batches(store, Files(store, max_bytes=10**6))
    return Service(model={"max_model_len": 4096}, batches=batches, max_file_bytes=10**5, **settings)


def encoder_service(_folder, **settings):
    """Return a service of an encoder."""
    return EncoderService(**settings)


def hearing_service(_folder, **settings):
    """Return a service of a model that hears."""
    return SpeechService(max_audio_bytes=2**24, **settings)


class Site:
    """What a browser reaches, and what lies behind it."""

    def __init__(self, service):
        self.service = service
        self.decided = asyncio.Event()
        self.is_live, self.is_draining, self.num_early = True, False, 0
        self.url = ""
        self.finish_start()

    def begin_start(self, **progress):
        """Go back to a start that is under way."""
        self.status, self.api = "starting", None
        self.service.readiness.error = NotReady("weights")
        self.service.readiness.progress = self.progress = lambda: STARTING | progress

    def finish_start(self, status="complete", **progress):
        """Let the start succeed."""
        self.status, self.api = status, self.service.fastapi
        self.service.readiness.status_once_started = status
        self.service.readiness.error = None
        self.service.readiness.progress = self.progress = lambda: STARTED | progress

    @property
    def is_ready(self):
        return self.status != "starting"

    def summary(self):
        return "weights"

    def stats(self):
        return {}

    @property
    def num_operations(self):
        """How many operations the API has, the operator's included."""
        document = httpx.get(f"{self.url}openapi.json", headers={"Authorization": "Bearer sk-1"}).json()
        return sum(map(len, document["paths"].values()))

    @property
    def engine(self):
        return self.service.engine


@contextmanager
def running_site(make=chat_service, **settings):
    """Serve a site on a port of its own."""
    folder = tempfile.TemporaryDirectory()
    site = Site(make(folder.name, **settings))
    listener = socket.create_server(("127.0.0.1", 0))
    site.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    early = early_app(site, Metrics())
    server = uvicorn.Server(uvicorn.Config(early, http="h11", ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield site
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        listener.close()
        folder.cleanup()
