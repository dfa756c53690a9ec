"""The plan of a draft model: what its target's engine needs to know of it before weights are read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import jax

from service.checkpoint.discover import LocatedCheckpoint
from service.compile.program import Program
from service.device.mesh import DeviceMesh
from service.engine.shapes import EngineShapes
from service.engine.sizing import ModelSize
from service.errors import SettingsError
from service.kernels.choice import KernelChoices
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig
from service.models.encoders.registry import is_encoder
from service.models.families.hub_keys import log_unknown_keys
from service.models.quantization import Quantization, kept_storage
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.models.weight_spec import DRAFT_PREFIX, WeightSpec, prefixed
from service.start.dtype import NumberFormats
from service.start.kinds.decoder import choose_kernel, make_decoder, position_bytes
from service.start.kinds.model_spec import EngineParts, weights_bytes

if TYPE_CHECKING:
    from service.engine.drafter import Drafter
    from service.engine.runner import DeviceState
    from service.engine.steps.draft import Drafting

# Parts of the names of architectures that draft with a target's hidden states.
HEADS = ("eagle", "medusa", "mtp", "mlpspeculator", "hydra")


@dataclass(frozen=True)
class DraftSpec:
    """A draft model on the devices of its target."""

    uri: str
    config: DecoderConfig
    formats: NumberFormats
    kernel: KernelChoices
    mesh: DeviceMesh
    is_of_target: ClassVar[bool] = False  # whether its weights are in its target's checkpoint

    @cached_property
    def specs(self) -> tuple[WeightSpec, ...]:
        """The weights."""
        formats = self.formats
        return decoder_weight_specs(self.config, formats.dtype, formats.quantization, formats.weight_dtype)

    @property
    def named_specs(self) -> tuple[WeightSpec, ...]:
        """The weights under the names that they have beside their target's."""
        return prefixed(self.specs, DRAFT_PREFIX)

    @property
    def key_inputs(self) -> Mapping[str, Any]:
        """What its executables depend on besides the sizes of its target's engine and the devices."""
        dtypes = (self.formats.dtype, self.formats.kv_dtype, self.formats.weight_dtype, self.formats.product_dtype)
        names = [dtype.name for dtype in dtypes]
        facts = {"dtypes": names, "quantization": self.formats.quantization, "kernel": self.kernel.name}
        return {"model": asdict(self.config), **facts}

    def beside(self, size: ModelSize) -> ModelSize:
        """Return the sizes of its target with its own: weights, and the twin of each of the target's pages."""
        kernel = self.kernel
        own_bytes = self.config.kv_bytes_per_token(
            lambda attention: position_bytes(attention, kernel, self.mesh, self.formats.kv_dtype)
        )
        return replace(
            size,
            weights_bytes=size.weights_bytes + weights_bytes(self.specs, self.mesh),
            kv_bytes_per_token=size.kv_bytes_per_token + own_bytes,
            max_table_bytes=_least(size.max_table_bytes, kernel.max_table_bytes),
            max_positions=_least(size.max_positions, kernel.max_positions),
            page_sizes=size.page_sizes if kernel.page_sizes is None else kernel.page_sizes,
        )

    def drafting(self, shapes: EngineShapes) -> "Drafting":
        """Return what is traced, beside a target of some sizes."""
        from service.engine.steps.draft import ModelDrafting

        return ModelDrafting(make_decoder(self.config, self.formats, self.kernel, self.mesh))

    def programs(self, shapes: EngineShapes, drafting: "Drafting") -> Sequence[Program]:
        """Return its programs, beside a target of some sizes."""
        from service.engine.steps.draft import draft_programs

        return draft_programs(drafting, shapes, weight_shapes(self.specs, self.mesh))

    def with_taps(self, shapes: EngineShapes) -> EngineShapes:
        """Return the sizes of a target that keeps what is drafted of; a model needs nothing."""
        return shapes

    def make_drafter(
        self, shapes: EngineShapes, vocab_size: int, parts: EngineParts, state: "DeviceState"
    ) -> "Drafter":
        """Return what runs the programs.

        Args:
            shapes: the sizes of the target's engine.
            vocab_size: the target's, of which every draft is a token.
            parts: of the target's engine, with the weights of both.
            state: of the target's engine.
        """
        from service.engine.drafter import Drafter

        weights, context_len = without_prefix(parts.weights, is_draft=True), self.config.context_len
        of_engine = (shapes, weights, parts.executables, state.draft_cache)
        return Drafter(*of_engine, context_len=context_len, vocab_size=vocab_size)


def without_prefix(weights: Mapping[str, jax.Array], *, is_draft: bool) -> dict[str, jax.Array]:
    """Return the weights of a target or of its draft model, of those of both."""
    length = len(DRAFT_PREFIX) if is_draft else 0
    return {name[length:]: array for name, array in weights.items() if name.startswith(DRAFT_PREFIX) == is_draft}


def choose_draft(
    located: LocatedCheckpoint,
    target: DecoderConfig,
    formats: NumberFormats,
    mesh: DeviceMesh,
    max_model_len: int | None = None,
    *,
    kernel_fault: str | None = None,
) -> DraftSpec:
    """Plan the draft model.

    Args:
        located: the draft model's checkpoint.
        target: the configuration of the model that it drafts for.
        formats: its dtypes, as the settings request them.
        mesh: the devices of both.
        max_model_len: the context that the operator requests; None for any.
        kernel_fault: what is wrong with the device's usual attention kernel, which the reference then replaces.

    Raises:
        UnsupportedModel: the draft model's family, or a feature of it, is not supported.
        SettingsError: one of the two models cannot be drafted for, or cannot draft.
    """
    check_target(target)
    uri, hub_config = located.uri, located.hub_config
    architectures = hub_config.get("architectures") or [""]
    if any(head in str(architectures[0]).lower() for head in HEADS) or hub_config.get("model_type") in HEADS:
        kind = architectures[0] or hub_config["model_type"]
        raise draft_refusal(uri, f"is a head ({kind}) of another kind than EAGLE-3, the only one that is supported")
    if is_encoder(hub_config, located.sentence_files):
        raise draft_refusal(uri, "is an encoder, which generates no tokens")
    config = read_config(uri, hub_config, max_model_len)
    log_unknown_keys(uri, hub_config)
    if config.speech_encoder is not None:
        raise draft_refusal(uri, "attends to recordings")
    if any(layer.state is not None for layer in config.layers):
        raise draft_refusal(uri, "has layers that keep states, which rejected tokens would have changed")
    config = replace(split_draft(uri, config, mesh), image_encoder=None)
    storage = config.layer_storage
    if formats.quantization is Quantization.INT4 and storage is not None and storage.obstacle_to_four_bits is not None:
        formats = formats._replace(quantization=Quantization.INT8)
    config = replace(config, layer_storage=kept_storage(storage, formats.quantization, mesh.platform, mesh.num_devices))
    return DraftSpec(uri, config, formats, choose_kernel(config, formats, mesh, kernel_fault), mesh)


def split_draft(uri: str, config: DecoderConfig, mesh: DeviceMesh) -> DecoderConfig:
    """Return the description of a draft model or a head that is split over the target's devices.

    Raises:
        SettingsError: they do not divide it.
    """
    if indivisible := {name: n for name, n in config.split_sizes.items() if n % mesh.num_devices}:
        sizes = " and ".join(f"{name} = {size}" for name, size in indivisible.items())
        raise draft_refusal(uri, f"has {sizes}, which the target's {mesh.num_devices} devices do not divide")
    return config.split_over(mesh.num_devices)


def check_target(target: DecoderConfig) -> None:
    """Check that tokens can be drafted for a model.

    Raises:
        SettingsError: they cannot.
    """
    if target.speech_encoder is not None:
        raise SettingsError("DRAFT_MODEL_URI", "is set, and nothing is drafted for a model of speech. Unset it.")


def draft_refusal(uri: str, reason: str) -> SettingsError:
    """Return the error of a draft model or a head that cannot draft, to be raised."""
    remedy = "Set it to a smaller decoder with the tokenizer of the model, or to an EAGLE-3 head that was made for it."
    return SettingsError("DRAFT_MODEL_URI", f"{uri} {reason}. {remedy}")


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
