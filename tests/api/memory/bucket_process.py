"""Answer requests by a scripted engine, and keep responses in a bucket, until killed: `ENDPOINT BUCKET`."""

import sys
import threading

from service.engine.request import FinishReason
from service.server.connection import Connection
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from tests.api.scripted_engine import Service, tokens
from tests.api.test_stored_responses import responses_in
from tests.sockets import served

if __name__ == "__main__":
    store = BucketStore(GcsLocation(sys.argv[2], "state"), emulator_host=sys.argv[1])
    store.update("ready", lambda present: b"")  # imports Google's client
    service = Service([*tokens("Hello world"), FinishReason.STOP], responses=responses_in(store))
    service.engine.pace_s = 0.05
    with served(service.app, Connection) as server:
        print(server.address[1], flush=True)
        threading.Event().wait()
