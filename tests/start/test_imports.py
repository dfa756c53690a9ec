"""The tweaks that shorten imports, each in a process of its own, and their switch."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

BEGIN = """
import gc, json, os, sys
from service.start.imports import begin_quick_imports
begin_quick_imports()
import numpy
from pathlib import Path
names = ("PYDANTIC_DISABLE_PLUGINS", "OPENBLAS_NUM_THREADS")
told = {name: os.environ.get(name) for name in names}
now = {
    "collects": gc.isenabled(),
    "interval_s": sys.getswitchinterval(),
    "threads": len(list(Path("/proc/self/task").iterdir())),
}
print(json.dumps(told | now))
"""


SETTLE = """
import gc, json, sys
usual_s = sys.getswitchinterval()
from service.start.imports import begin_quick_imports, end_quick_imports
begin_quick_imports()
end_quick_imports()
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 0, sys.getswitchinterval() == usual_s]))
"""

UNLOAD = """
import gc, json, time, weakref
from service.start.imports import begin_quick_imports, collect_unloaded, end_quick_imports
class Model: pass
def load():
    model = Model()
    model.itself = model
    return weakref.ref(model)
begin_quick_imports()
began_s, preloaded = time.monotonic(), load()
end_quick_imports()
later_s, later = time.monotonic(), load()
num_frozen = gc.get_freeze_count()
end_quick_imports()
is_frozen_once = gc.get_freeze_count() == num_frozen
collect_unloaded(later_s)
is_later_gone, was_frozen = later() is None, preloaded() is not None
collect_unloaded(began_s)
print(json.dumps([is_frozen_once, is_later_gone, was_frozen, preloaded() is None, gc.get_freeze_count() > 0]))
"""

IMPORT_JAX = """
import importlib.metadata, json, sys
from service.start.imports import quick_jax_import, run_deferred
with quick_jax_import():
    import jax
searched = [name for name in ("etils", "filelock", "cloudpickle") if name in sys.modules]
assert jax.jit(lambda x: jax.nn.relu(jax.numpy.einsum("i,i->", x, x)))(jax.numpy.ones(3)) == 3
run_deferred()
import etils.epath, filelock
print(json.dumps({"searched": searched, "packages": len(list(importlib.metadata.distributions())) > 20}))
"""

METADATA = """
import json, sys
from service.start.imports import quick_google_import
with quick_google_import():
    import google.auth
    from google.auth.transport.requests import Request
    credentials, _ = google.auth.default()
    credentials.refresh(Request())
imported = "cryptography" in sys.modules
from google.auth import jwt
print(json.dumps([credentials.token, imported, callable(jwt.encode)]))
"""

FASTAPI = """
import json
from pydantic import BaseModel
from service.start.imports import quick_fastapi_import
with quick_fastapi_import():
    from fastapi.openapi.models import OpenAPI
was_built = OpenAPI.__pydantic_complete__
document = OpenAPI(openapi="3.1.0", info={"title": "API", "version": "1"}, paths={})
class Body(BaseModel):
    text: str
print(json.dumps([was_built, document.info.title, OpenAPI.__pydantic_complete__, Body.__pydantic_complete__]))
"""

DATACLASSES = """
import json, os, unittest
from service.start.imports import begin_quick_imports
begin_quick_imports()
from test import test_dataclasses
done = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromModule(test_dataclasses).run(done)
print(json.dumps([done.testsRun > 200, [text for _, text in done.failures + done.errors]]))
"""

# What a start runs before jax is imported, or beside its import.
BESIDE_JAX = """
import json, sys
import service.bundles.prefetch, service.checkpoint.load, service.checkpoint.tokenizer_files
import service.server.pool.opening, service.server.app, service.start.load
print(json.dumps("jax" in sys.modules))
"""


def begin(code: str = BEGIN, **variables: str) -> Any:
    dropped = ("OPENBLAS_NUM_THREADS", "JAX_COMPILATION_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in dropped} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_process_begins_without_a_collector_plugins_or_threads():
    told = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OPENBLAS_NUM_THREADS": "1"}
    assert begin() == told | {"collects": False, "interval_s": 0.0005, "threads": 1}


def test_what_the_operator_has_set_stays():
    assert begin(PYDANTIC_DISABLE_PLUGINS="logfire")["PYDANTIC_DISABLE_PLUGINS"] == "logfire"
    assert begin(OPENBLAS_NUM_THREADS="2")["OPENBLAS_NUM_THREADS"] == "2"


def test_once_all_is_imported_the_process_is_as_usual_again():
    assert begin(SETTLE) == [True, True, True]


def test_a_model_that_existed_at_the_end_of_a_start_is_freed_all_the_same():
    assert begin(UNLOAD) == [True] * 5


def test_jax_is_imported_without_what_only_compiling_needs_and_has_all_of_it_when_asked():
    assert begin(IMPORT_JAX) == {"searched": [], "packages": True}


def test_a_token_of_a_metadata_server_needs_no_cryptography_which_is_there_when_asked():
    class MetadataServer(BaseHTTPRequestHandler):
        def do_GET(self):
            document = {"email": "account@project.example", "access_token": "secret", "expires_in": 3600}
            content = b"project" if "project-id" in self.path else json.dumps(document).encode()
            self.send_response(200)
            for name, value in {"Metadata-Flavor": "Google", "Content-Type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), MetadataServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        told = begin(METADATA, GCE_METADATA_HOST=address, GCE_METADATA_IP=address, HOME="/nonexistent")
        server.shutdown()
    assert told == ["secret", False, True]


def test_fastapi_builds_the_schemas_of_its_document_when_they_are_used_and_others_are_built_at_once():
    assert begin(FASTAPI) == [False, "API", True, True]


def test_dataclasses_pass_the_tests_of_the_library():
    pytest.importorskip("test.test_dataclasses")
    assert begin(DATACLASSES) == [True, []]


def test_what_a_start_does_beside_the_import_of_jax_does_not_import_it_first():
    assert begin(BESIDE_JAX) is False


def test_the_switch_leaves_process_and_imports_as_python_has_them():
    now = begin(LEVSERVE_IMPORT_TWEAKS="off")
    assert (now["collects"], now["interval_s"], now["PYDANTIC_DISABLE_PLUGINS"]) == (True, 0.005, None)
    assert begin(IMPORT_JAX, LEVSERVE_IMPORT_TWEAKS="off")["searched"] != []
