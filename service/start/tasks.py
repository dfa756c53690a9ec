"""The tasks of a start between discovery and the first answer. Each imports its dependencies when it runs.

A warm start imports no Levanter, Haliax, Equinox or Transformers, and nothing here may import jax before the task
`devices` does.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.bundles.location import local_folder
from service.bundles.prefetch import NOTHING, PrefetchedBundle, prefetch_bundle
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.layout import GENERATION_CONFIG
from service.checkpoint.load import LoadedWeights, load_checkpoint
from service.errors import MissingExtra, SettingsError
from service.models.encoders.registry import is_encoder
from service.models.encoders.sentence import read_sentence_config
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
    import jax
    from tokenizers import Tokenizer as TokenizerBackend

    from service.api.served import Served
    from service.checkpoint.limits import LoadLimits
    from service.compile.lru_cache import LruCache
    from service.device.mesh import DeviceMesh
    from service.models.weight_spec import WeightSpec
    from service.start.executables import BundleSearch, StartExecutables
    from service.start.kinds.model_spec import ModelSpec, Running, TextFiles
    from service.text.load import TokenizerFiles

logger = logging.getLogger(__name__)

DEMO_NAME = "levserve-demo"
MAX_TEMPLATE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class StartedModel:
    """A loaded model that answers requests."""

    served: "Served"
    running: "Running"
    release_files: Callable[[], None]  # lets the cache delete the checkpoint
    cache_weights: Callable[[], None]  # copies the weights to the host cache, if HOST_CACHE_BYTES allows

    def unload(self) -> None:
        """Stop the device thread; the memory is freed once the caller drops this object."""
        self.running.thread.stop()
        self.cache_weights()
        self.release_files()


def read_last_bundle(context: StartContext) -> PrefetchedBundle:
    """Read this machine's most recently used bundle while jax imports; only in the first start of a process."""
    if context.devices is not None:
        return NOTHING
    return prefetch_bundle(local_folder(context.settings))


def choose_spec(context: StartContext, devices: Devices, checkpoint: LocatedCheckpoint) -> "ModelSpec":
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
            "data_parallel": len(spec.meshes),
            "bundle": spec.key.digest,
            **spec.log_fields,
        },
    )
    return spec


def check_packages(_: StartContext, checkpoint: LocatedCheckpoint, spec: "ModelSpec") -> None:
    """Check that what decodes the media of requests is installed.

    Raises:
        MissingExtra: it is not.
    """
    package = spec.media_package
    if package is not None and find_spec(package) is None:
        reason = f"takes media, and {package}, which decodes them, is not installed"
        raise MissingExtra(checkpoint.uri, reason, "media")


def make_room(context: StartContext, spec: "ModelSpec") -> None:
    """Wait until the device has room for weights and caches next to other models."""
    context.make_room(spec.memory_bytes, spec.devices)


def load_weights(
    context: StartContext,
    checkpoint: LocatedCheckpoint,
    spec: "ModelSpec",
    expected_weights: ExpectedWeights | None,
    prefetched_weights: PrefetchedWeights | None,
) -> "LoadedWeights[jax.Array]":
    """Place the prefetched weights, or load the needed ones; with lower priority if other models are running."""
    if context.devices is not None:
        yield_to_steps(LOAD_NICENESS)  # each task has its own thread
    begin_s = None if prefetched_weights is None else prefetched_weights.begin_s
    with context.progress.phase(Phase.WEIGHTS, begin_s=begin_s) as fields:
        fields["weights_bytes"] = spec.weights_bytes
        cached = context.common.host_cache.place(_weights_key(checkpoint, spec), spec.all_specs, spec.mesh)
        fields["is_from_host_cache"] = cached is not None
        if cached is not None:
            return LoadedWeights(cached)
        own = _own_weights(context, checkpoint, spec, expected_weights, prefetched_weights)
        if checkpoint.draft is None:
            return own
        of_draft = [each for each in spec.all_specs if each not in spec.own_specs]
        return _with_draft(own, checkpoint.draft, of_draft, spec.mesh, context.load_limits)


def _own_weights(
    context: StartContext,
    checkpoint: LocatedCheckpoint,
    spec: "ModelSpec",
    expected_weights: ExpectedWeights | None,
    prefetched_weights: PrefetchedWeights | None,
) -> "LoadedWeights[jax.Array]":
    """Place the checkpoint's own weights that were prefetched, or load those that are needed."""
    if prefetched_weights is not None and expected_weights is not None:
        if expected_weights.match(spec):
            on_host = prefetched_weights.loaded
            return LoadedWeights(spec.mesh.alias_host_arrays(on_host.weights), on_host.release)
        prefetched_weights.loaded.release()
    return load_checkpoint(checkpoint, spec.own_specs, mesh=spec.mesh, limits=context.load_limits)


def _with_draft(
    own: "LoadedWeights[jax.Array]",
    draft: LocatedCheckpoint,
    specs: "Sequence[WeightSpec]",
    mesh: "DeviceMesh",
    limits: "LoadLimits",
) -> "LoadedWeights[jax.Array]":
    """Load a draft model's weights, and return them beside the target's."""
    try:
        loaded = load_checkpoint(draft, specs, mesh=mesh, limits=limits)
    except BaseException:
        own.release()
        raise

    def release() -> None:
        own.release()
        loaded.release()

    return LoadedWeights({**own.weights, **loaded.weights}, release)


def _weights_key(checkpoint: LocatedCheckpoint, spec: "ModelSpec") -> str:
    return f"{spec.key.digest} {checkpoint.version}"


def search_bundle(
    context: StartContext, checkpoint: LocatedCheckpoint, spec: "ModelSpec", last_bundle: PrefetchedBundle
) -> "BundleSearch":
    """Look for the executables: among other loaded models, on this machine, then at BUNDLE_URI.

    The spec of what was found is another than the given one if the attention kernel was refused.
    """
    from service.bundles.lookup import BundlePlaces
    from service.start.executables import BundleSearch, find_bundle, find_checked

    places = BundlePlaces.of_settings(context.settings, checkpoint.uri, context.metrics, last_bundle)

    def find(spec: "ModelSpec") -> "BundleSearch":
        if (shared := context.common.executables.get(spec.key.digest)) is not None:
            return BundleSearch(spec, places, None, context.progress.elapsed_s(), shared)
        return find_bundle(spec, places, context.progress)

    return find_checked(find, spec, partial(replan, context, checkpoint, spec), context.progress)


def replan(context: StartContext, checkpoint: LocatedCheckpoint, spec: "ModelSpec", kernel_fault: str) -> "ModelSpec":
    """Plan a generative model again, with the reference in place of its device's attention kernel."""
    from service.start.kinds.engine_spec import choose_engine_spec

    share = context.memory_share
    settings = context.settings.model_copy(update={"data_parallel": len(spec.meshes)})
    return choose_engine_spec(settings, checkpoint, spec.devices, memory_share=share, kernel_fault=kernel_fault)


def begin_executables(context: StartContext, bundle: "BundleSearch") -> "StartExecutables":
    """Start to load the bundle's executables, or to compile them, without waiting."""
    from service.start.executables import obtain_executables

    return obtain_executables(bundle, context.progress)


def wait_for_first(_: StartContext, executables: "StartExecutables") -> None:
    """Wait for the executables of the first token, unless they come from a bundle."""
    executables.wait_for_first()


def begin_state(_: StartContext, bundle: "BundleSearch", executables: "StartExecutables") -> list[Any]:
    """Allocate the device state that the steps of each engine need in addition to weights."""
    return [bundle.spec.begin_state(by_name) for by_name in executables.by_engine]


def pull_tokenizer_files(context: StartContext, checkpoint: LocatedCheckpoint) -> Path:
    """Pull the tokenizer's files to a local folder."""
    with context.progress.phase(Phase.TOKENIZER, "pull"):
        from service.checkpoint.tokenizer_files import pull_tokenizer

        return pull_tokenizer(checkpoint, context.cache, context.progress.pulled).path


def load_text(context: StartContext, checkpoint: LocatedCheckpoint, tokenizer_files: Path) -> "TextFiles":
    """Read tokenizer and chat template; parsing a tokenizer that is not cached holds the GIL."""
    with context.progress.phase(Phase.TOKENIZER) as fields:
        from service.start.kinds.model_spec import TextFiles
        from service.text.json_file import read_json
        from service.text.load import end_ids, load_chat_template, load_tokenizer, read_preprocessor, special_tokens_of

        uri, config = checkpoint.tokenizer.source.uri, checkpoint.hub_config
        special = special_tokens_of(tokenizer_files, uri, config)
        settings = context.settings
        template = load_chat_template(
            tokenizer_files,
            special.names,
            uri,
            is_trusted=uri == demo_uri(),
            own=_own_template(settings),
            tool_call_parser=None if settings.tool_call_parser == "auto" else settings.tool_call_parser,
            reasoning_parser=None if settings.reasoning_parser == "auto" else settings.reasoning_parser,
            defaults=settings.default_chat_template_kwargs,
        )
        generation = checkpoint.generation
        if generation is None:
            generation = read_json(tokenizer_files, GENERATION_CONFIG, uri)
        parse = partial(_parse_once, context.common.tokenizers)
        tokenizer = load_tokenizer(tokenizer_files, uri, parse, config=config, generation=generation, special=special)
        if checkpoint.sentence_files and read_sentence_config(uri, checkpoint.sentence_files).lowers:
            from service.text.lowercase import lowercased

            tokenizer = lowercased(tokenizer)
        if template is not None:
            template.wait()
            tokenizer.eos_ids = end_ids(tokenizer, template)
            fields |= {"answer_format": template.format.name}
        fields |= {"tokens": tokenizer.vocab_size, "has_chat_template": template is not None}
        if tokenizer.num_rows is not None and tokenizer.vocab_size > tokenizer.num_rows:
            fields["tokens_without_embedding"] = tokenizer.vocab_size - tokenizer.num_rows
    return TextFiles(tokenizer, template, generation, read_preprocessor(tokenizer_files, uri))


def check_draft(context: StartContext, checkpoint: LocatedCheckpoint, tokenizer: "TextFiles") -> None:
    """Check that the draft model, if there is one, has the tokens of its target.

    Raises:
        SettingsError: it has others.
    """
    draft = checkpoint.draft
    if draft is None or draft.tokenizer is checkpoint.tokenizer:  # a head's
        return
    from service.checkpoint.tokenizer_files import pull_tokenizer
    from service.text.load import load_tokenizer

    files = pull_tokenizer(draft, context.cache, context.progress.pulled).path
    parse = partial(_parse_once, context.common.tokenizers)
    other = load_tokenizer(files, draft.uri, parse, config=draft.hub_config, generation={})
    if (token := tokenizer.tokenizer.first_difference(other)) is not None:
        message = (
            f"{draft.uri} has another tokenizer than the model: {token!r} is not the same token of both. Set it to a "
            "smaller model of the same family."
        )
        raise SettingsError("DRAFT_MODEL_URI", message)


def _own_template(settings: Settings) -> str | None:
    """Return the text of CHAT_TEMPLATE, which names a file or is the template itself."""
    stated = settings.chat_template
    if stated is None or "{" in stated or "\n" in stated:
        return stated
    from service.storage.text_file import read_text_file

    return read_text_file(
        stated,
        "CHAT_TEMPLATE",
        max_bytes=MAX_TEMPLATE_BYTES,
        cache_root=settings.local_model_cache,
        emulator_host=settings.storage_emulator_host,
    )


def _parse_once(parsed: "LruCache[TokenizerBackend]", files: "TokenizerFiles") -> "TokenizerBackend":
    """Return the cached tokenizer of files, parsing them if necessary."""
    from service.text.load import parse_tokenizer

    backend = parsed.get(files.digest)
    if backend is None:
        backend = parse_tokenizer(files)
        parsed.put(files.digest, backend)
    return backend


def start_engine(
    context: StartContext,
    bundle: "BundleSearch",
    weights: "LoadedWeights[jax.Array]",
    executables: "StartExecutables",
    device_states: list[Any],
) -> "Running":
    """Start the device threads, after the weights were copied to the devices of each engine but the first."""
    with context.progress.phase(Phase.WARM):
        from service.start.kinds.model_spec import EngineParts

        spec = bundle.spec
        copies = [weights.weights, *(spec.copy_weights(weights.weights, mesh) for mesh in spec.meshes[1:])]
        return spec.start(context, list(map(EngineParts, copies, executables.by_engine, device_states)))


def assemble_model(  # noqa: PLR0917 (the results of five tasks)
    context: StartContext,
    checkpoint: LocatedCheckpoint,
    spec: "ModelSpec",
    weights: "LoadedWeights[jax.Array]",
    engine: "Running",
    tokenizer: "TextFiles",
) -> StartedModel:
    """Combine engine and tokenizer; from here on, requests can be answered."""
    name, *other_names = served_names(context.settings)
    key = _weights_key(checkpoint, spec)
    served = engine.served(
        tokenizer,
        name=name,
        other_names=tuple(other_names),
        system_fingerprint=f"fp_{hashlib.sha256(key.encode()).hexdigest()[:12]}",
        created=int(time.time()),
    )
    cache_weights = partial(context.common.host_cache.store, key, weights.weights)
    return StartedModel(served, engine, weights.release, cache_weights)


def import_choice(context: StartContext, checkpoint: LocatedCheckpoint) -> "Callable[..., ModelSpec]":
    """Import and return the function that chooses the spec for the checkpoint's kind of model.

    Raises:
        SettingsError: the model is an encoder but has generation defaults.
    """
    with context.progress.phase(Phase.IMPORT, "engine"):
        if is_encoder(checkpoint.hub_config, checkpoint.sentence_files):
            from service.start.kinds.encoder_spec import choose_encoder_spec

            if context.defaults != NO_DEFAULTS:
                raise SettingsError("MODELS_CONFIG", f"{checkpoint.uri} is an encoder, which has no 'defaults'.")
            return choose_encoder_spec
        from service.start.kinds.engine_spec import choose_engine_spec

        return choose_engine_spec


def served_names(settings: Settings) -> tuple[str, ...]:
    """Return all names of the single model that the settings configure; the first is its id."""
    return settings.model_names or (_default_name(settings),)


def _default_name(settings: Settings) -> str:
    if settings.checkpoint_uri is None:
        return DEMO_NAME
    location = parse_location(checkpoint_uri(settings))
    return location.repo if isinstance(location, HubLocation) else location.uri.rstrip("/").rsplit("/", 1)[-1]
