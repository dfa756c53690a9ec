"""What libraries are told before they are imported, seen from a process of its own."""

import json
import os
import subprocess
import sys

from pydantic import BaseModel

from service.quick_imports import schemas_on_demand

BEGIN = """
import gc, json, os, threading
from service.quick_imports import prepare
prepare()
import numpy
from pathlib import Path
names = ("PYDANTIC_DISABLE_PLUGINS", "OPENBLAS_NUM_THREADS")
told = {name: os.environ[name] for name in names}
print(json.dumps(told | {"collects": gc.isenabled(), "threads": len(list(Path("/proc/self/task").iterdir()))}))
"""


def begin(**variables: str) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"} | variables
    done = subprocess.run([sys.executable, "-c", BEGIN], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_process_begins_without_a_collector_plugins_or_threads():
    told = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OPENBLAS_NUM_THREADS": "1"}
    assert begin() == told | {"collects": False, "threads": 1}


def test_what_the_operator_has_set_stays():
    assert begin(PYDANTIC_DISABLE_PLUGINS="logfire")["PYDANTIC_DISABLE_PLUGINS"] == "logfire"
    assert begin(OPENBLAS_NUM_THREADS="2")["OPENBLAS_NUM_THREADS"] == "2"


def test_a_model_that_is_defined_meanwhile_is_built_when_it_is_used():
    with schemas_on_demand():

        class Late(BaseModel):
            size: int

    class Soon(BaseModel):
        size: int

    assert (Late.__pydantic_complete__, Soon.__pydantic_complete__) == (False, True)
    assert Late.model_validate({"size": "3"}).size == 3
    assert Late.__pydantic_complete__
