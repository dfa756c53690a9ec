"""The task graph of a start, from settings to a complete service with its bundle stored.

Loading executables and weights releases the GIL, so GIL-bound work (the tokenizer, the API's imports) starts after
them. While jax imports, another processor loads the weights that a CPU would serve and the most recently used bundle.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from service.checkpoint.discover import LocatedCheckpoint
from service.start.context import StartContext
from service.start.devices import Devices
from service.start.discover import find_devices, locate_checkpoint
from service.start.finish import mark_ready, obtain_rest, probe, return_memory, store_bundle
from service.start.graph import Task, Tasks
from service.start.prefetch import check_prefetch, expect_weights, prefetch_weights
from service.start.tasks import (
    StartedModel,
    assemble_model,
    begin_executables,
    begin_state,
    check_draft,
    check_packages,
    choose_spec,
    load_text,
    load_weights,
    make_room,
    pull_tokenizer_files,
    read_last_bundle,
    search_bundle,
    start_engine,
    wait_for_first,
)

if TYPE_CHECKING:
    from service.start.kinds.model_spec import ModelSpec


class Discovery(NamedTuple):
    """The first tasks of a start, which read no weights."""

    devices: Task[Devices]
    checkpoint: Task[LocatedCheckpoint]
    spec: "Task[ModelSpec]"


class StartTasks(NamedTuple):
    """The tasks of a start that others wait for."""

    devices: Task[Devices]
    checkpoint: Task[LocatedCheckpoint]
    model: Task[StartedModel]


def add_discovery(tasks: Tasks[StartContext]) -> Discovery:
    """Declare the tasks that plan a model."""
    devices = tasks.add("devices", find_devices)
    checkpoint = tasks.add("checkpoint", locate_checkpoint)
    return Discovery(devices, checkpoint, tasks.add("spec", choose_spec, devices, checkpoint))


def add_start(tasks: Tasks[StartContext], import_api: Callable[[StartContext], None] | None = None) -> StartTasks:
    """Declare the tasks of a start.

    Args:
        tasks: receives the tasks.
        import_api: what else the first answer waits for; it begins once the bundle is found.
    """
    devices, checkpoint, spec = add_discovery(tasks)
    tasks.add("packages", check_packages, checkpoint, spec)
    room = tasks.add("room", make_room, spec)
    last_bundle = tasks.add("last_bundle", read_last_bundle)
    bundle = tasks.add("bundle", search_bundle, checkpoint, spec, last_bundle)
    executables = tasks.add("executables", begin_executables, bundle)
    first = tasks.add("first_executables", wait_for_first, executables)
    expected = tasks.add("expected_weights", expect_weights, checkpoint)
    prefetched = tasks.add("prefetched_weights", prefetch_weights, checkpoint, expected)
    tasks.add("prefetch_check", check_prefetch, expected, spec)
    weights = tasks.add("weights", load_weights, checkpoint, spec, expected, prefetched, after=[room])
    state = tasks.add("device_state", begin_state, bundle, executables, after=[room])
    files = tasks.add("tokenizer_files", pull_tokenizer_files, checkpoint)
    text = tasks.add("tokenizer", load_text, checkpoint, files, after=[bundle])
    checked = tasks.add("draft_tokenizer", check_draft, checkpoint, text)
    api = [] if import_api is None else [tasks.add("api", import_api, after=[bundle])]
    engine = tasks.add("engine", start_engine, bundle, weights, executables, state, after=[first])
    model = tasks.add("model", assemble_model, checkpoint, spec, weights, engine, text, after=[*api, checked])
    probed = tasks.add("probe", probe, checkpoint, spec, weights, engine, after=[model])
    rest = tasks.add("rest", obtain_rest, bundle, executables, engine, after=[probed])
    ready = tasks.add("ready", mark_ready, devices, bundle, model, rest)
    stored = tasks.add("stored_bundle", store_bundle, bundle, executables, rest, after=[ready])
    tasks.add("returned_memory", return_memory, after=[stored])
    return StartTasks(devices, checkpoint, model)


class ModelStart:
    """A running start; see `add_start`."""

    def __init__(self, context: StartContext, import_api: Callable[[StartContext], None] | None = None) -> None:
        self.tasks = Tasks[StartContext]()
        self._added = add_start(self.tasks, import_api)
        self.tasks.begin(context, context.failed)

    def wait_for_devices(self) -> Devices:
        """Wait until the devices are found.

        Raises:
            StartError: the start has failed.
        """
        return self._added.devices.wait()

    def wait_for_checkpoint(self) -> LocatedCheckpoint:
        """Wait until the checkpoint's files are listed; its weights are read meanwhile.

        Raises:
            StartError: the start has failed.
        """
        return self._added.checkpoint.wait()

    def wait_for_model(self) -> StartedModel:
        """Wait until requests can be answered.

        Raises:
            StartError: the model cannot be served.
        """
        return self._added.model.wait()

    def wait_until_ready(self) -> None:
        """Wait until a token has been generated, all executables are available and the bundle is stored.

        Raises:
            EngineError: no token was generated.
        """
        self.tasks.wait()
