"""What Python and its libraries are told so that importing them does not do work that this service has no use for."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


def prepare() -> None:
    """Prepare the process; to be called before anything else is imported."""
    # What is imported stays, so looking for garbage in it only delays the start; `ModelLoad` switches it on again.
    gc.disable()
    # Else pydantic reads what every installed package says of itself, in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Else OpenBLAS, which comes with numpy, begins threads that spin; numpy multiplies no matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextmanager
def schemas_on_demand() -> Iterator[None]:
    """Let the pydantic models that are defined meanwhile build their schemas when they are first used.

    FastAPI defines OpenAPI's documents as forty models, which a service without such documents never uses; to build
    them is a fourth of its import.
    """
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True  # every model without a word of its own inherits this
    try:
        yield
    finally:
        del BaseModel.model_config["defer_build"]
