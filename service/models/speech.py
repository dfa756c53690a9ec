"""The forward pass of Whisper's encoder: the features of one window of sound to the memory of a decoder.

It is traced in parts, as a decoder is: `begin`, some layers at a time, `end`.

Source: Radford et al. 2022, arXiv:2212.04356; transformers `models/whisper/modeling_whisper.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from service.kernels.products.linear import linear
from service.models.activations import activate
from service.models.both_ways import BothWays
from service.models.description import ENCODER_PREFIX, Activation, SpeechEncoder
from service.models.interface import LayerGroup, Weights

TAPS = 3  # of both convolutions
LONGEST_WAVELENGTH = 10_000  # of the sinusoids, divided by 2 pi


@dataclass(frozen=True)
class SpeechEncoding(BothWays[SpeechEncoder]):
    """An encoder of one description, in one dtype."""

    @property
    def features(self) -> jax.ShapeDtypeStruct:
        """Frames and features of a window."""
        return jax.ShapeDtypeStruct((self.config.num_frames, self.config.num_mels), np.float32)

    def begin(self, weights: Weights, features: Float[Array, "frame mel"]) -> Float[Array, "position hidden"]:
        """Convolve the features of a window, and add the positions."""
        x = features.astype(self.dtype)
        for name, stride in (("conv1", 1), ("conv2", 2)):
            with jax.named_scope(name):
                x = (
                    self._convolved(x, weights[f"{ENCODER_PREFIX}{name}"], stride)
                    + weights[f"{ENCODER_PREFIX}{name}_bias"][None]
                )
                x = activate(x, Activation.GELU)
        return x + sinusoids(self.config.num_positions, self.config.hidden_size).astype(self.dtype)

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], hidden: Float[Array, "position hidden"]
    ) -> Float[Array, "position hidden"]:
        """Run a group's layers."""
        return self._run_layers(group, weights, hidden)

    def end(self, weights: Weights, hidden: Float[Array, "position hidden"]) -> Float[Array, "position hidden"]:
        """Normalize the output."""
        return self._normalized(self.config.final_norm, "final_norm", weights, hidden)

    def _convolved(
        self, x: Float[Array, "frame channel"], weight: Float[Array, "embed channel tap"], stride: int
    ) -> Float[Array, "position embed"]:
        """Convolve as one product: of each position with the frames under it."""
        padded = jnp.pad(x, ((1, 1), (0, 0)))
        under = [padded[tap : tap + len(x) : stride] for tap in range(TAPS)]
        return linear(jnp.stack(under, axis=-1), weight, self.products, num_in_axes=2)


def sinusoids(num_positions: int, width: int) -> Float32[np.ndarray, "position width"]:
    """Return the embeddings of positions: sines of falling frequencies, then cosines of the same.

    Source: https://github.com/openai/whisper/blob/main/whisper/model.py (sinusoids)
    """
    step = math.log(LONGEST_WAVELENGTH) / (width // 2 - 1)
    angles = np.arange(num_positions)[:, None] * np.exp(-step * np.arange(width // 2))[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
