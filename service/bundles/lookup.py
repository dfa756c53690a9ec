"""Lookup and storage of bundles: first in this machine's cache, then in the location that instances share.

A broken bundle or an unreachable location costs a log line, a metric and a recompile, but never stops a start.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import service
from service.bundles.bundle import MANIFEST_NAME, Bundle, BundleRefused, Manifest, check_names, inputs_of
from service.bundles.folder import BundleFolder
from service.bundles.key import BundleKey, machine_inputs, source_digest
from service.bundles.location import local_folder, shared_location
from service.bundles.partial import PartialBundle
from service.bundles.prefetch import NOTHING, PrefetchedBundle
from service.bundles.signature import UNSIGNED, Signer
from service.device.mesh import DeviceMesh
from service.encoder.shapes import EncoderShapes
from service.engine.shapes import EngineShapes
from service.errors import ServiceError
from service.models.description import DecoderConfig
from service.models.encoders.registry import AnyEncoderConfig
from service.models.quantization import Quantization
from service.observability.metrics import Metrics
from service.settings import Settings
from service.storage.entries import Entries
from service.storage.location import LocalLocation
from service.storage.retry import TransferLimits
from service.storage.store import open_store

logger = logging.getLogger(__name__)

# Everything that compiled functions depend on, enforced by an import-linter contract. Changing any of these files
# changes the key of the bundle.
TRACED_SOURCES = (
    "compile",
    "device",
    "encoder/shapes.py",
    "encoder/steps",
    "engine/limits.py",
    "engine/shapes.py",
    "engine/steps",
    "engine/token_mask.py",
    "kernels",
    "models",
)
# Reads are latency-bound: many small remote files.
NUM_READERS = 8
# A start must not wait long for a bundle, since it can always compile.
READ_DEADLINE_S = 60.0


def bundle_key(
    config: DecoderConfig | AnyEncoderConfig,
    dtype: np.dtype,
    shapes: EngineShapes | EncoderShapes,
    mesh: DeviceMesh,
    quantization: Quantization = Quantization.NONE,
    *,
    kv_dtype: np.dtype | None = None,
    weight_dtype: np.dtype | None = None,
    product_dtype: np.dtype | None = None,
    kernel: str | None = None,
    draft: Mapping[str, Any] | None = None,
) -> BundleKey:
    """Return the key of the bundle for a model; the attention kernel is named because a check may refuse the usual.

    A draft model adds what its own executables depend on.
    """
    inputs: dict[str, Any] = {
        "model": asdict(config),
        "dtype": dtype.name,
        "quantization": quantization,
        "kv_dtype": kv_dtype.name if kv_dtype is not None else dtype.name,
        "weight_dtype": weight_dtype.name if weight_dtype is not None else dtype.name,
        "product_dtype": product_dtype.name if product_dtype is not None else dtype.name,
        "kernel": kernel,
        **({} if draft is None else {"draft": draft}),
        "shapes": asdict(shapes),
        "source": _traced_digest(),
        "mesh": mesh.key_inputs,
        **machine_inputs(mesh.devices),
    }
    return BundleKey(inputs)


@cache  # the sources of a running process do not change
def _traced_digest() -> str:
    return source_digest(Path(service.__file__).parent, TRACED_SOURCES)


class BundlePlaces:
    """The stores of bundles in search order."""

    def __init__(
        self,
        places: Sequence[Entries],
        metrics: Metrics,
        prefetched: PrefetchedBundle = NOTHING,
        signer: Signer = UNSIGNED,
    ) -> None:
        self.places = places
        self._prefetched = prefetched
        self._signer = signer
        self.outcome = "miss"  # of the last `find`: hit, miss, stale, corrupt or unsigned
        self._metrics = metrics

    @classmethod
    def of_settings(
        cls,
        settings: Settings,
        checkpoint_uri: str,
        metrics: Metrics,
        prefetched: PrefetchedBundle = NOTHING,
    ) -> "BundlePlaces":
        """Return the stores that the settings configure.

        Args:
            settings: the settings of the service.
            checkpoint_uri: the served checkpoint; with BUNDLE_URI=sibling, its bundles are next to it.
            metrics: counts the outcomes.
            prefetched: files of this machine's bundles that have been read already.

        Raises:
            SettingsError: BUNDLE_URI is malformed.
        """
        local = BundleFolder(local_folder(settings), prefetched=prefetched)
        shared = _shared_place(settings, checkpoint_uri)
        signer = Signer(settings.bundle_signing_keys)
        return cls([local, shared] if shared else [local], metrics, prefetched, signer)

    def find(self, keys: Sequence[BundleKey], names: Sequence[str]) -> Bundle | None:
        """Return a bundle with these executables, or None if they have to be compiled.

        Args:
            keys: keys of acceptable bundles, in order of preference.
            names: names of the executables.
        """
        self.outcome = "miss"
        for key, place in itertools.product(keys, self.places):
            bundle = self._try(place, key, names)
            if bundle is not None:
                self.outcome = "hit"
                self._count()
                return bundle
        self._count()
        self._explain_miss(keys[0])
        return None

    def partial(self, key: BundleKey) -> PartialBundle:
        """Return the executables that interrupted starts of this machine have compiled for an incomplete bundle."""
        return BundleFolder(Path(self.places[0].uri)).partial(key.digest, self._signer)

    def store(self, bundle: Bundle, *, replaces: bool = False) -> list[str]:
        """Store a bundle; return the addresses where it was stored.

        Args:
            bundle: the bundle.
            replaces: whether to store it in place of one with the same key; otherwise only where there is none.
        """
        stored = []
        for place in self.places:
            try:
                if place.write(bundle.manifest.key, bundle.files(self._signer), replaces=replaces):
                    stored.append(place.uri)
            except (OSError, ServiceError) as error:
                # A service's identity need not write what a job has made.
                level = logging.INFO if replaces else logging.WARNING
                logger.log(level, "the bundle could not be stored", extra=_log_fields(place, error))
        if stored:
            fields = {"key": bundle.manifest.key, "places": stored, "bundle_bytes": bundle.size_bytes}
            logger.info("bundle stored", extra=fields)
        return stored

    def close(self) -> None:
        """Close all connections; the stores cannot be used afterwards."""
        for place in self.places:
            place.close()

    def _try(self, place: Entries, key: BundleKey, names: Sequence[str]) -> Bundle | None:
        """Read a bundle, or return None if there is no usable one."""
        try:
            return self._read(place, key, names)
        except BundleRefused as refusal:
            self.outcome = refusal.outcome
            logger.warning("%s; compiling instead", refusal, extra={"outcome": refusal.outcome})
            self._discard(place, key)
        except (OSError, ServiceError) as error:
            logger.warning("the bundle could not be read; compiling instead", extra=_log_fields(place, error))
        return None

    def _read(self, place: Entries, key: BundleKey, names: Sequence[str]) -> Bundle | None:
        data = place.read(key.digest, MANIFEST_NAME)
        if data is None:
            return None
        manifest = Manifest.parse(place.uri, data, key, self._signer)
        check_names(place.uri, manifest, names)

        def read_one(name: str) -> bytes:
            file = place.read(key.digest, manifest.executables[name].file)
            return manifest.check(place.uri, name, file, self._prefetched.sha256)

        with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="bundle") as pool:
            return Bundle(manifest, dict(zip(names, pool.map(read_one, names), strict=True)))

    def _count(self) -> None:
        self._metrics.bundle_load.labels(self.outcome).inc()

    def _discard(self, place: Entries, key: BundleKey) -> None:
        try:
            place.discard(key.digest)
        except (OSError, ServiceError) as error:
            logger.warning("the unusable bundle could not be removed", extra=_log_fields(place, error))

    def _explain_miss(self, key: BundleKey) -> None:
        """Log which inputs differ from the most similar bundle of this machine, to explain a cold start."""
        local = self.places[0]
        if self.outcome != "miss" or not isinstance(local, BundleFolder):
            return
        differences = [key.differences(inputs) for data in local.manifests() if (inputs := inputs_of(data)) is not None]
        nearest = {"nearest_differs_in": min(differences, key=len)} if differences else {}
        logger.info("no bundle for this start yet", extra={"key": key.digest, **nearest})


def _shared_place(settings: Settings, checkpoint_uri: str) -> Entries | None:
    location = shared_location(settings.bundle_uri, checkpoint_uri)
    if location is None:
        return None
    if isinstance(location, LocalLocation):
        return BundleFolder(location.path, is_private=False)
    limits = TransferLimits(deadline_s=READ_DEADLINE_S, outage_s=0.0)  # compiling takes no longer than an outage
    store = open_store(location.uri, "BUNDLE_URI", emulator_host=settings.storage_emulator_host, limits=limits)
    return Entries(store, MANIFEST_NAME)


def _log_fields(place: Entries, error: Exception) -> dict[str, Any]:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return {"place": place.uri, "reason": reason}
