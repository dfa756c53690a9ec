"""The task graph of a start, from settings to a complete service with its bundle stored.

Loading executables and weights releases the GIL, so GIL-bound work (the tokenizer, the API's imports) starts after
them. While jax imports, another processor loads the weights that a CPU would serve and the most recently used bundle.
"""

from collections.abc import Sequence

from service.start.context import StartContext
from service.start.discover import find_devices, locate_checkpoint
from service.start.finish import mark_ready, obtain_rest, probe, return_memory, store_bundle
from service.start.graph import GraphRun, Task
from service.start.prefetch import check_prefetch, expect_weights, prefetch_weights
from service.start.tasks import (
    LoadedModel,
    assemble_model,
    begin_state,
    choose_spec,
    find_bundle,
    load_text,
    load_weights,
    make_room,
    obtain_executables,
    pull_tokenizer_files,
    read_last_bundle,
    start_engine,
    wait_for_first,
)

DISCOVERY = (
    Task("devices", find_devices),
    Task("checkpoint", locate_checkpoint),
    Task("spec", choose_spec, needs=("devices", "checkpoint")),
)


def start_graph(before_answering: Sequence[Task] = ()) -> tuple[Task, ...]:
    """Return the tasks of a start.

    Args:
        before_answering: additional tasks that the first answer waits for, such as importing the API.
    """
    others = tuple(task.name for task in before_answering)
    return (
        *DISCOVERY,
        Task("room", make_room, needs=("spec",)),
        Task("last_bundle", read_last_bundle),
        Task("bundle", find_bundle, needs=("checkpoint", "spec", "last_bundle")),
        Task("executables", obtain_executables, needs=("spec", "bundle")),
        Task("first_executables", wait_for_first, needs=("executables",)),
        Task("expected_weights", expect_weights, needs=("checkpoint",)),
        Task("prefetched_weights", prefetch_weights, needs=("checkpoint", "expected_weights")),
        Task("prefetch_check", check_prefetch, needs=("expected_weights", "spec")),
        Task(
            "weights",
            load_weights,
            needs=("checkpoint", "spec", "expected_weights", "prefetched_weights"),
            after=("room",),
        ),
        Task("device_state", begin_state, needs=("spec", "executables"), after=("room",)),
        Task("tokenizer_files", pull_tokenizer_files, needs=("checkpoint",)),
        Task("tokenizer", load_text, needs=("checkpoint", "tokenizer_files"), after=("bundle",)),
        *before_answering,
        Task(
            "engine",
            start_engine,
            needs=("spec", "weights", "executables", "device_state"),
            after=("first_executables",),
        ),
        Task("model", assemble_model, needs=("checkpoint", "spec", "weights", "engine", "tokenizer"), after=others),
        Task("probe", probe, needs=("engine",), after=("model",)),
        Task("rest", obtain_rest, needs=("spec", "bundle", "executables", "engine"), after=("probe",)),
        Task("ready", mark_ready, needs=("devices", "spec", "bundle", "model", "rest")),
        Task("stored_bundle", store_bundle, needs=("spec", "bundle", "executables", "rest"), after=("ready",)),
        Task("returned_memory", return_memory, after=("stored_bundle",)),
    )


class ModelStart:
    """A running start; see `start_graph`."""

    def __init__(self, context: StartContext, before_answering: Sequence[Task] = ()) -> None:
        self.run = GraphRun(start_graph(before_answering), context, failed=context.failed)

    def wait_for_model(self) -> LoadedModel:
        """Wait until requests can be answered.

        Raises:
            StartError: the model cannot be served.
        """
        return self.run.wait("model")

    def wait_until_ready(self) -> None:
        """Wait until a token has been generated, all executables are available and the bundle is stored.

        Raises:
            EngineError: no token was generated.
        """
        self.run.wait_for_all()
