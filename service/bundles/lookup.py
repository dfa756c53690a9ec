"""Look bundles up and store them: in this machine's cache first, then in the place that instances share.

A broken bundle or an unreachable place costs a log line, a count and a recompile; it never stops a start.
"""

import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import service
from service.bundles.bundle import MANIFEST_NAME, Bundle, BundleRefused, Manifest, check_names, inputs_of
from service.bundles.folder import BundleFolder, BundlePlace
from service.bundles.kept import KeptExecutables
from service.bundles.key import BundleKey, machine_inputs, source_digest
from service.bundles.location import local_folder, shared_location
from service.bundles.prefetch import PrefetchedBundle
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
from service.storage.location import LocalLocation

logger = logging.getLogger(__name__)

# All that compiled functions depend on, which an import-linter contract ensures. A change in any of these files makes
# another bundle.
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
# Files are small and their places far away, so reading waits rather than works.
NUM_READERS = 8


def bundle_key(
    config: DecoderConfig | AnyEncoderConfig,
    dtype: np.dtype,
    shapes: EngineShapes | EncoderShapes,
    mesh: DeviceMesh,
    quantization: Quantization = Quantization.NONE,
    *,
    kv_dtype: np.dtype | None = None,
    weight_dtype: np.dtype | None = None,
) -> BundleKey:
    """Return the key of the bundle that a model needs; which kernel it uses follows from these."""
    inputs: dict[str, Any] = {
        "model": asdict(config),
        "dtype": dtype.name,
        "quantization": quantization,
        "kv_dtype": kv_dtype.name if kv_dtype is not None else dtype.name,
        "weight_dtype": weight_dtype.name if weight_dtype is not None else dtype.name,
        "shapes": asdict(shapes),
        "source": _traced_digest(),
        "mesh": mesh.facts,
        **machine_inputs(mesh.devices),
    }
    return BundleKey(inputs)


@cache  # the sources of a process are those that it has imported
def _traced_digest() -> str:
    return source_digest(Path(service.__file__).parent, TRACED_SOURCES)


class BundlePlaces:
    """The places that hold bundles, in the order in which they are searched."""

    def __init__(
        self,
        places: Sequence[BundlePlace],
        metrics: Metrics,
        prefetched: PrefetchedBundle | None = None,
        signer: Signer = UNSIGNED,
    ) -> None:
        self.places = places
        self._prefetched = prefetched
        self._signer = signer
        self.outcome = "miss"  # of the last `find`: hit, miss, stale, corrupt or unsigned
        self._metrics = metrics

    @classmethod
    def of_settings(
        cls, settings: Settings, checkpoint_uri: str, metrics: Metrics, prefetched: PrefetchedBundle | None = None
    ) -> "BundlePlaces":
        """Return the places that the settings name.

        Args:
            settings: what to serve and how.
            checkpoint_uri: the served checkpoint; with BUNDLE_URI=sibling its bundles lie beside it.
            metrics: where outcomes are counted.
            prefetched: the files of this machine's bundles that have been read already.

        Raises:
            SettingsError: BUNDLE_URI is malformed.
        """
        local = BundleFolder(local_folder(settings), prefetched=prefetched)
        shared = _shared_place(settings, checkpoint_uri)
        signer = Signer(settings.bundle_signing_keys)
        return cls([local, shared] if shared else [local], metrics, prefetched, signer)

    def find(self, keys: Sequence[BundleKey], names: Sequence[str]) -> Bundle | None:
        """Return a bundle that holds these executables; None if they have to be compiled.

        Args:
            keys: those of bundles that serve, the better ones first.
            names: of the executables.
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

    def kept(self, key: BundleKey) -> KeptExecutables:
        """Return the place of what starts of this machine have compiled of a bundle that is not complete."""
        return BundleFolder(Path(self.places[0].uri)).kept(key.digest, self._signer)

    def store(self, bundle: Bundle) -> list[str]:
        """Store a bundle in every place that lacks it; return the addresses of those that took it."""
        kept = []
        for place in self.places:
            try:
                if place.write(bundle.manifest.key, bundle.files(self._signer)):
                    kept.append(place.uri)
            except (OSError, ServiceError) as error:
                logger.warning("the bundle was not kept here for other starts", extra=_facts(place, error))
        if kept:
            facts = {"key": bundle.manifest.key, "places": kept, "bundle_bytes": bundle.size_bytes}
            logger.info("bundle kept", extra=facts)
        return kept

    def close(self) -> None:
        """Close all connections; the places can be used no further."""
        for place in self.places:
            place.close()

    def _try(self, place: BundlePlace, key: BundleKey, names: Sequence[str]) -> Bundle | None:
        """Read a bundle; None if there is none, or none that can be used."""
        try:
            return self._read(place, key, names)
        except BundleRefused as refusal:
            self.outcome = refusal.outcome
            logger.warning("%s; compiling instead", refusal, extra={"outcome": refusal.outcome})
            self._discard(place, key)
        except (OSError, ServiceError) as error:
            logger.warning("no bundle could be read; compiling instead", extra=_facts(place, error))
        return None

    def _read(self, place: BundlePlace, key: BundleKey, names: Sequence[str]) -> Bundle | None:
        data = place.read(key.digest, MANIFEST_NAME)
        if data is None:
            return None
        manifest = Manifest.parse(place.uri, data, key, self._signer)
        check_names(place.uri, manifest, names)
        sha256 = self._prefetched.sha256 if self._prefetched is not None else None

        def read_one(name: str) -> bytes:
            file = place.read(key.digest, manifest.executables[name].file)
            return manifest.check(place.uri, name, file, sha256)

        with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="bundle") as pool:
            return Bundle(manifest, dict(zip(names, pool.map(read_one, names), strict=True)))

    def _count(self) -> None:
        self._metrics.bundle_load.labels(self.outcome).inc()

    def _discard(self, place: BundlePlace, key: BundleKey) -> None:
        try:
            place.discard(key.digest)
        except (OSError, ServiceError) as error:
            logger.warning("the unusable bundle cannot be removed", extra=_facts(place, error))

    def _explain_miss(self, key: BundleKey) -> None:
        """Log in which inputs the most similar bundle of this machine differs: why this start is cold."""
        local = self.places[0]
        if self.outcome != "miss" or not isinstance(local, BundleFolder):
            return
        found = [key.differences(inputs) for data in local.manifests() if (inputs := inputs_of(data)) is not None]
        facts = {"nearest_differs_in": min(found, key=len)} if found else {}
        logger.info("no bundle for this start yet", extra={"key": key.digest, **facts})


def _shared_place(settings: Settings, checkpoint_uri: str) -> BundlePlace | None:
    location = shared_location(settings.bundle_uri, checkpoint_uri)
    if location is None:
        return None
    if isinstance(location, LocalLocation):
        return BundleFolder(location.path, is_private=False)
    from service.bundles.bucket import BundleBucket

    return BundleBucket(location, emulator_host=settings.storage_emulator_host)


def _facts(place: BundlePlace, error: Exception) -> dict[str, Any]:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return {"place": place.uri, "reason": reason}
