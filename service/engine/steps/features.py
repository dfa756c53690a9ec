"""The hidden states of a target that a head drafts of: those before some of its layers, kept for each position.

They lie under the numbers of the target's pages, so that whoever holds a page, or finds it, has them.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.engine.shapes import EngineShapes
from service.kernels.paging import Regions
from service.models.interface import PagedDecoder

type Features = Float[Array, "tap page offset hidden"]
NOT_IN_GROUP = -1


def initial_features(model: PagedDecoder, shapes: EngineShapes) -> Features:
    """Return the features before the first step."""
    size = (len(shapes.taps or ()), shapes.num_pages, shapes.page_size, model.hidden_size)
    return jnp.zeros(size, model.dtype)


def taps_in(layers: range, taps: tuple[int, ...]) -> Int[np.ndarray, " tap"]:
    """Return the numbers of layers among those of a group and the one behind it; NOT_IN_GROUP for those of others.

    What is before a layer is what is behind the one before it: two groups keep the same.
    """
    first, last = layers.start, layers.stop
    return np.array([tap - first if first <= tap <= last else NOT_IN_GROUP for tap in taps], np.int32)


def with_shown(
    features: Features, shown: Float[Array, "tap token hidden"], regions: Regions, taps: Int[Array, " tap"]
) -> Features:
    """Return features with the hidden states of a step's tokens before those of some layers that a group has."""
    pages, offsets = _places(features, regions, shown.shape[1])
    pages = jnp.where(taps[:, None] == NOT_IN_GROUP, features.shape[1], pages)
    return features.at[jnp.arange(len(taps))[:, None], pages, offsets].set(shown.astype(features.dtype), mode="drop")


def features_of(features: Features, regions: Regions, num_tokens: int) -> Float[Array, "token tap hidden"]:
    """Return the features of a step's tokens; of padding any."""
    pages, offsets = _places(features, regions, num_tokens)
    return jnp.swapaxes(features.at[:, pages, offsets].get(mode="clip"), 0, 1)


def _places(features: Features, regions: Regions, num_tokens: int) -> tuple[Int[Array, " token"], Int[Array, " token"]]:
    """Return the page and the offset of each token; the page of padding lies past the last."""
    _, num_pages, page_size, _ = features.shape
    widths = (1, regions.width(num_tokens))
    each = [
        paging.destinations(width, num_pages=num_pages, page_size=page_size)
        for paging, width in zip(regions, widths, strict=True)
    ]
    pages, offsets = (jnp.concatenate([part.reshape(-1) for part in parts]) for parts in zip(*each, strict=True))
    return pages, offsets
