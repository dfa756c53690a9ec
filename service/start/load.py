"""The graph of a start, from settings to a service that is ready and has stored its bundle.

Loading executables and weights releases the GIL, so GIL-bound work (the tokenizer, the API's imports) begins after
them. While jax imports, a processor is idle: it loads the weights that a CPU would serve and the last used bundle.
"""

from collections.abc import Sequence

from service.start.context import StartContext
from service.start.discover import find_devices, locate_checkpoint
from service.start.finish import fill_caches, load_rest, mark_ready, probe, store_bundle
from service.start.graph import GraphRun, Part
from service.start.parts import (
    LoadedModel,
    assemble_model,
    begin_state,
    choose_spec,
    find_bundle,
    load_text,
    load_weights,
    obtain_executables,
    pull_tokenizer_files,
    read_last_bundle,
    start_engine,
)
from service.start.prefetch import check_prefetch, expect_weights, prefetch_weights

DISCOVERY = (
    Part("devices", find_devices),
    Part("checkpoint", locate_checkpoint),
    Part("spec", choose_spec, needs=("devices", "checkpoint")),
)


def start_graph(before_answering: Sequence[Part] = ()) -> tuple[Part, ...]:
    """Return the parts of a start.

    Args:
        before_answering: further parts that the first answer waits for, such as the import of the API.
    """
    others = tuple(part.name for part in before_answering)
    return (
        *DISCOVERY,
        Part("last_bundle", read_last_bundle),
        Part("bundle", find_bundle, needs=("checkpoint", "spec", "last_bundle")),
        Part("executables", obtain_executables, needs=("spec", "bundle")),
        Part("expected_weights", expect_weights, needs=("checkpoint",)),
        Part("prefetched_weights", prefetch_weights, needs=("checkpoint", "expected_weights")),
        Part("prefetch_check", check_prefetch, needs=("expected_weights", "spec")),
        Part("weights", load_weights, needs=("checkpoint", "spec", "expected_weights", "prefetched_weights")),
        Part("device_state", begin_state, needs=("spec", "executables")),
        Part("tokenizer_files", pull_tokenizer_files, needs=("checkpoint",)),
        Part("tokenizer", load_text, needs=("checkpoint", "tokenizer_files"), after=("bundle",)),
        *before_answering,
        Part("engine", start_engine, needs=("spec", "weights", "executables", "device_state")),
        Part("model", assemble_model, needs=("spec", "engine", "tokenizer"), after=others),
        Part("probe", probe, needs=("engine",), after=("model",)),
        Part("rest", load_rest, needs=("spec", "bundle", "executables"), after=("probe",)),
        Part("caches", fill_caches, needs=("engine",), after=("probe",)),
        Part("ready", mark_ready, needs=("devices", "spec", "bundle", "engine", "model"), after=("rest", "caches")),
        Part("stored_bundle", store_bundle, needs=("spec", "bundle", "executables"), after=("ready",)),
    )


class ModelStart:
    """A start under way."""

    def __init__(self, context: StartContext, before_answering: Sequence[Part] = ()) -> None:
        """Begin; see `start_graph`."""
        self.run = GraphRun(start_graph(before_answering), context, failed=context.failed)

    def wait_for_model(self) -> LoadedModel:
        """Wait until requests can be answered; without a bundle that is after every executable has run.

        Raises:
            StartError: the model cannot be served; the message says why and what to do.
        """
        return self.run.wait("model")

    def wait_until_ready(self) -> None:
        """Wait until every executable is loaded, a token has been generated and the bundle is stored.

        Raises:
            EngineError: no token came out.
        """
        self.run.wait_for_all()
