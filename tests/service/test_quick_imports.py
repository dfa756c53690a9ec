"""What libraries are told before they are imported, seen from a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.quick_imports import schemas_on_demand

BEGIN = """
import gc, json, os, sys
from service.quick_imports import prepare
prepare()
import numpy
from pathlib import Path
names = ("PYDANTIC_DISABLE_PLUGINS", "OPENBLAS_NUM_THREADS")
told = {name: os.environ[name] for name in names}
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
from service.quick_imports import prepare, settle
prepare()
settle()
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 0, sys.getswitchinterval() == usual_s]))
"""

IMPORT_JAX = """
import importlib.metadata, json, sys
from service.quick_imports import without_vain_searches
with without_vain_searches():
    import jax
searched = [name for name in ("etils", "filelock", "unittest") if name in sys.modules]
import etils.epath, filelock
print(json.dumps({"searched": searched, "packages": len(list(importlib.metadata.distributions())) > 20}))
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


def test_jax_is_imported_without_searching_for_what_is_not_there_and_others_find_all_of_it():
    assert begin(IMPORT_JAX) == {"searched": [], "packages": True}


def test_jax_gets_what_its_own_cache_needs_where_there_is_one(tmp_path: Path):
    assert "etils" in begin(IMPORT_JAX, JAX_COMPILATION_CACHE_DIR=str(tmp_path))["searched"]


def test_a_model_that_is_defined_meanwhile_is_built_when_it_is_used():
    with schemas_on_demand():

        class Late(BaseModel):
            size: int

    class Soon(BaseModel):
        size: int

    assert (Late.__pydantic_complete__, Soon.__pydantic_complete__) == (False, True)
    assert Late.model_validate({"size": "3"}).size == 3
    assert Late.__pydantic_complete__
