"""The tasks of a start between its discovery and its first answer. Each imports what it needs when it runs.

A warm start imports no Levanter, Haliax, Equinox or Transformers, and nothing here may import jax before `devices` has.
"""

import hashlib
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from service.bundles.location import local_folder
from service.bundles.prefetch import PrefetchedBundle, prefetch_bundle
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.load import LoadedWeights, load_checkpoint
from service.errors import MalformedCheckpoint, SettingsError
from service.models.encoders.registry import is_encoder
from service.settings import Settings
from service.start.context import StartContext
from service.start.devices import Devices
from service.start.discover import checkpoint_uri, demo_uri
from service.start.niceness import LOAD_NICENESS, yield_to_steps
from service.start.prefetch import ExpectedWeights, PrefetchedWeights
from service.start.progress import Phase
from service.storage.location import HubLocation, parse_location
from service.text.generation_defaults import NO_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import jax
    from tokenizers import Tokenizer as TokenizerBackend

    from service.api.served import Served
    from service.compile.shared import Shared
    from service.start.executables import BundleSearch, Executables
    from service.start.kinds.model_spec import ModelSpec, Running, Text

logger = logging.getLogger(__name__)

DEMO_NAME = "levserve-demo"


@dataclass(frozen=True)
class LoadedModel:
    """A model that answers requests."""

    served: "Served"
    running: "Running"
    release_files: "Callable[[], None]"  # lets the cache delete the checkpoint
    keep_weights: "Callable[[], None]"  # in the host's memory, as far as HOST_CACHE_BYTES allows

    def unload(self) -> None:
        """End the device thread; the memory is free once the caller drops this object."""
        self.running.thread.stop()
        self.keep_weights()
        self.release_files()


def read_last_bundle(context: StartContext) -> PrefetchedBundle:
    """Read the bundle that this machine used last while jax imports; a later start of a process reads none ahead."""
    if context.devices is not None:
        return PrefetchedBundle()
    return prefetch_bundle(local_folder(context.settings))


def choose_spec(context: StartContext, *, devices: Devices, checkpoint: LocatedCheckpoint) -> "ModelSpec":
    """Choose dtype, sizes, kernel and mesh from configuration and devices."""
    choose = import_choice(context, checkpoint)
    spec = choose(context.settings, checkpoint, devices.devices, memory_share=context.memory_share)
    logger.info(
        "planned",
        extra={
            "dtype": spec.dtype.name,
            "weights_bytes": spec.weights_bytes,
            "memory_bytes": spec.memory_bytes,
            "tensor_parallel": spec.mesh.num_devices,
            "bundle": spec.key.digest,
            **spec.facts,
        },
    )
    return spec


def make_room(context: StartContext, *, spec: "ModelSpec") -> None:
    """Wait until the device has room for weights and caches, where other models share it."""
    context.make_room(spec.memory_bytes, spec.mesh.devices)


def load_weights(
    context: StartContext,
    *,
    checkpoint: LocatedCheckpoint,
    spec: "ModelSpec",
    expected_weights: ExpectedWeights | None,
    prefetched_weights: PrefetchedWeights | None,
) -> "LoadedWeights[jax.Array]":
    """Place the prefetched weights, or load those that the engine asks for; beside other models, at less priority."""
    if context.devices is not None:
        yield_to_steps(LOAD_NICENESS)  # the thread is this task's own
    begin_s = None if prefetched_weights is None else prefetched_weights.begin_s
    with context.progress.phase(Phase.WEIGHTS, begin_s=begin_s) as facts:
        facts["weights_bytes"] = spec.weights_bytes
        kept = context.common.host_cache.place(_weights_key(checkpoint, spec), spec.specs, spec.mesh)
        facts["is_from_host_cache"] = kept is not None
        if kept is not None:
            return LoadedWeights(kept)
        if prefetched_weights is not None and expected_weights is not None:
            if expected_weights.match(spec):
                on_host = prefetched_weights.loaded
                return LoadedWeights(spec.mesh.alias_host_arrays(on_host.weights), on_host.release)
            prefetched_weights.loaded.release()
        return load_checkpoint(checkpoint, spec.specs, mesh=spec.mesh, limits=context.load_limits)


def _weights_key(checkpoint: LocatedCheckpoint, spec: "ModelSpec") -> str:
    return f"{spec.key.digest} {checkpoint.weights.version}"


def find_bundle(
    context: StartContext, *, checkpoint: LocatedCheckpoint, spec: "ModelSpec", last_bundle: PrefetchedBundle
) -> "BundleSearch":
    """Look for the executables: among those of other models, on this machine, then where BUNDLE_URI says."""
    from service.bundles.lookup import BundlePlaces
    from service.start.executables import BundleSearch, find_bundle

    places = BundlePlaces.of_settings(context.settings, checkpoint.uri, context.metrics, last_bundle)
    if (shared := context.common.executables.find(spec.key.digest)) is not None:
        return BundleSearch(places, None, context.progress.elapsed_s(), shared)
    return find_bundle(spec, places, context.progress)


def obtain_executables(context: StartContext, *, spec: "ModelSpec", bundle: "BundleSearch") -> "Executables":
    """Begin to load the bundle's executables, or to compile them, and return."""
    from service.start.executables import obtain_executables

    return obtain_executables(spec, bundle, context.progress)


def wait_for_first(_: StartContext, *, executables: "Executables") -> None:
    """Wait for the executables of a first token, if there is no bundle to load them from."""
    executables.wait_for_first()


def begin_state(_: StartContext, *, spec: "ModelSpec", executables: "Executables") -> Any:
    """Make the device state that steps need besides weights."""
    return spec.begin_state(executables.by_name)


def pull_tokenizer_files(context: StartContext, *, checkpoint: LocatedCheckpoint) -> "Path":
    """Pull the tokenizer's files into a local folder."""
    with context.progress.phase(Phase.TOKENIZER, "pull"):
        from service.checkpoint.tokenizer_files import pull_tokenizer

        return pull_tokenizer(checkpoint, context.cache, context.progress.pulled).path


def load_text(context: StartContext, *, checkpoint: LocatedCheckpoint, tokenizer_files: "Path") -> "Text":
    """Read tokenizer and chat template; parsing a tokenizer that no other model has holds the GIL."""
    with context.progress.phase(Phase.TOKENIZER) as facts:
        from service.start.kinds.model_spec import Text
        from service.text.load import load_chat_template, load_tokenizer, special_tokens_of

        uri = checkpoint.tokenizer.source.uri
        stated = context.settings.tool_call_parser
        template = load_chat_template(
            tokenizer_files,
            special_tokens_of(tokenizer_files, uri),
            uri,
            is_trusted=uri == demo_uri(),
            tool_call_parser=None if stated == "auto" else stated,
        )
        tokenizer = load_tokenizer(tokenizer_files, uri, partial(_parse_once, context.common.tokenizers))
        num_rows = checkpoint.hub_config.get("vocab_size")
        if isinstance(num_rows, int) and tokenizer.vocab_size > num_rows:
            reason = f"has {tokenizer.vocab_size} tokens; the model's embedding has {num_rows}. It is another model's."
            raise MalformedCheckpoint(uri, "tokenizer.json", reason)
        if template is not None:
            template.wait()
        facts |= {"tokens": tokenizer.vocab_size, "has_chat_template": template is not None}
    return Text(tokenizer, template)


def _parse_once(parsed: "Shared[TokenizerBackend]", content: bytes) -> "TokenizerBackend":
    """Return the tokenizer of the same file that another model has; parse it if there is none."""
    from service.text.load import parse_tokenizer

    key = hashlib.sha256(content).hexdigest()
    backend = parsed.find(key)
    if backend is None:
        backend = parse_tokenizer(content)
        parsed.keep(key, backend)
    return backend


def start_engine(
    context: StartContext,
    *,
    spec: "ModelSpec",
    weights: "LoadedWeights[jax.Array]",
    executables: "Executables",
    device_state: Any,
) -> "Running":
    """Start the device thread."""
    with context.progress.phase(Phase.WARM):
        return spec.start(context, weights.weights, executables.by_name, device_state)


def assemble_model(
    context: StartContext,
    *,
    checkpoint: LocatedCheckpoint,
    spec: "ModelSpec",
    weights: "LoadedWeights[jax.Array]",
    engine: "Running",
    tokenizer: "Text",
) -> LoadedModel:
    """Put engine and tokenizer together: requests are answered from here on."""
    name, *other_names = served_names(context.settings)
    key = _weights_key(checkpoint, spec)
    served = engine.served(
        tokenizer,
        name=name,
        other_names=tuple(other_names),
        system_fingerprint=f"fp_{hashlib.sha256(key.encode()).hexdigest()[:12]}",
        created=int(time.time()),
    )
    keep_weights = partial(context.common.host_cache.keep, key, weights.weights)
    return LoadedModel(served, engine, weights.release, keep_weights)


def import_choice(context: StartContext, checkpoint: LocatedCheckpoint) -> "Callable[..., ModelSpec]":
    """Import what chooses the spec of the checkpoint's kind of model, and return it.

    Raises:
        SettingsError: it turns texts into vectors, and has defaults of generation.
    """
    with context.progress.phase(Phase.IMPORT, "engine"):
        if is_encoder(checkpoint.hub_config, checkpoint.sentence_files):
            from service.start.kinds.encoder_spec import choose_encoder_spec

            if context.defaults != NO_DEFAULTS:
                raise SettingsError("MODELS_CONFIG", f"{checkpoint.uri} is an encoder, so it can have no 'defaults'.")
            return choose_encoder_spec
        from service.start.kinds.engine_spec import choose_engine_spec

        return choose_engine_spec


def served_names(settings: Settings) -> tuple[str, ...]:
    """Return every name of the one model that the settings name; the first is its own."""
    return settings.model_names or (_default_name(settings),)


def _default_name(settings: Settings) -> str:
    if settings.checkpoint_uri is None:
        return DEMO_NAME
    location = parse_location(checkpoint_uri(settings))
    return location.repo if isinstance(location, HubLocation) else location.uri.rstrip("/").rsplit("/", 1)[-1]
