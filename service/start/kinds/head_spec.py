"""The plans of heads: draft models that read hidden states of their target."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, override

import jax
import numpy as np

from service.checkpoint.discover import LocatedCheckpoint
from service.compile.program import Program
from service.device.mesh import DeviceMesh
from service.engine.shapes import EngineShapes
from service.engine.sizing import ModelSize
from service.models.description import DecoderConfig
from service.models.eagle3 import Eagle3Config, eagle3_weight_specs, is_embedding, read_eagle3
from service.models.mtp import MtpConfig, mtp_weight_specs, shared_specs
from service.models.quantization import Quantization
from service.models.weight_shapes import weight_shapes
from service.models.weight_spec import WeightSpec
from service.start.dtype import NumberFormats
from service.start.kinds.decoder import choose_kernel, make_decoder
from service.start.kinds.draft_spec import DraftSpec, check_target, draft_refusal, split_draft, without_prefix
from service.start.kinds.model_spec import EngineParts

if TYPE_CHECKING:
    from service.engine.drafter import Drafter
    from service.engine.runner import DeviceState
    from service.engine.steps.draft import Drafting
    from service.models.decoder import Decoder
    from service.models.draft_head import DraftHead


@dataclass(frozen=True)
class HeadSpec(DraftSpec):
    """A head on the devices of its target; `config` describes its layer."""

    target_dtype: np.dtype  # of the hidden states
    # The arrays of the target that it reads, each with its name in the head.
    shared: tuple[tuple[str, WeightSpec], ...]
    head: Eagle3Config | MtpConfig

    @abstractmethod
    def make_head(self, layer: "Decoder") -> "DraftHead":
        """Return the head around its layer."""

    @property
    @override
    def key_inputs(self) -> Mapping[str, Any]:
        shared = [(name, spec.shape, spec.dtype.name) for name, spec in self.shared]
        return {**super().key_inputs, "shared": shared, "model": asdict(self.head)}

    @override
    def beside(self, size: ModelSize) -> ModelSize:
        size = super().beside(size)
        kept_bytes = len(self.head.taps) * self.head.target_size * self.target_dtype.itemsize
        return replace(size, kv_bytes_per_token=size.kv_bytes_per_token + kept_bytes)

    @override
    def drafting(self, shapes: EngineShapes) -> "Drafting":
        from service.engine.steps.draft_head import HeadDrafting
        from service.models.decoder import Decoder

        layer = make_decoder(self.config, self.formats, self.kernel, self.mesh)
        assert isinstance(layer, Decoder), "a layer is traced as those of its target are"
        return HeadDrafting(self.make_head(layer), shapes)

    @override
    def programs(self, shapes: EngineShapes, drafting: "Drafting") -> Sequence[Program]:
        from service.engine.steps.draft import draft_programs

        kept = (len(self.head.taps), shapes.num_pages, shapes.page_size, self.head.target_size)
        shared = (replace(spec, name=name) for name, spec in self.shared)
        weights = weight_shapes((*self.specs, *shared), self.mesh)
        return draft_programs(drafting, shapes, weights, jax.ShapeDtypeStruct(kept, self.target_dtype))

    @override
    def with_taps(self, shapes: EngineShapes) -> EngineShapes:
        return replace(shapes, taps=self.head.taps)

    @override
    def make_drafter(
        self, shapes: EngineShapes, vocab_size: int, parts: EngineParts, state: "DeviceState"
    ) -> "Drafter":
        from service.engine.drafter import Drafter
        from service.engine.steps.draft_head import lag_of_head

        own, of_target = (without_prefix(parts.weights, is_draft=is_draft) for is_draft in (True, False))
        weights = own | {name: of_target[spec.name] for name, spec in self.shared}
        return Drafter(
            *(shapes, weights, parts.executables, state.draft_cache),
            features=state.features,
            # Beyond the length that a head was trained with it may be wrong more often.
            context_len=shapes.max_model_len,
            vocab_size=vocab_size,
            lag=lag_of_head(shapes),
        )


@dataclass(frozen=True)
class Eagle3Spec(HeadSpec):
    """An EAGLE-3 head."""

    head: Eagle3Config

    @cached_property
    @override
    def specs(self) -> tuple[WeightSpec, ...]:
        formats = self.formats
        return eagle3_weight_specs(self.head, formats.dtype, formats.quantization, formats.weight_dtype)

    @override
    def make_head(self, layer: "Decoder") -> "DraftHead":
        from service.models.eagle3_head import Eagle3Head

        return Eagle3Head(layer, self.head)


@dataclass(frozen=True)
class MtpSpec(HeadSpec):
    """The layer that predicts further tokens, of the target's own checkpoint."""

    head: MtpConfig
    is_of_target: ClassVar[bool] = True

    @cached_property
    @override
    def specs(self) -> tuple[WeightSpec, ...]:
        formats = self.formats
        return mtp_weight_specs(self.head, formats.dtype, formats.quantization, formats.weight_dtype)

    @override
    def make_head(self, layer: "Decoder") -> "DraftHead":
        from service.models.mtp_head import MtpHead

        shared = (replace(spec, name=name) for name, spec in self.shared)
        axes = {spec.name: spec.axes for spec in (*self.specs, *shared) if not spec.name.startswith("layers.")}
        return MtpHead(layer, self.head, axes)


def choose_mtp(
    uri: str,
    head: MtpConfig,
    formats: NumberFormats,
    mesh: DeviceMesh,
    *,
    target_specs: Sequence[WeightSpec],
    kernel_fault: str | None = None,
) -> MtpSpec:
    """Plan the layer that predicts further tokens.

    Args:
        uri: the checkpoint's address.
        head: the layer, split over the devices as the model is.
        formats: the dtypes of the model.
        mesh: the devices of both.
        target_specs: the weights of the model.
        kernel_fault: what is wrong with the device's usual attention kernel, which the reference then replaces.
    """
    target_dtype = formats.dtype
    if formats.quantization is Quantization.INT4:
        formats = formats._replace(quantization=Quantization.INT8)
    kernel = choose_kernel(head.decoder, formats, mesh, kernel_fault)
    return MtpSpec(uri, head.decoder, formats, kernel, mesh, target_dtype, shared_specs(target_specs), head)


def choose_head(
    located: LocatedCheckpoint,
    target: DecoderConfig,
    formats: NumberFormats,
    mesh: DeviceMesh,
    *,
    target_specs: Sequence[WeightSpec],
    target_dtype: np.dtype,
    kernel_fault: str | None = None,
) -> Eagle3Spec:
    """Plan an EAGLE-3 head.

    Args:
        located: its checkpoint.
        target: the configuration of the model that it drafts for.
        formats: its dtypes, as the settings request them.
        mesh: the devices of both.
        target_specs: the weights of that model.
        target_dtype: of its hidden states.
        kernel_fault: what is wrong with the device's usual attention kernel, which the reference then replaces.

    Raises:
        UnsupportedModel: a feature of the head is not supported.
        SettingsError: nothing can be drafted for the target, or the head was made for another.
    """
    check_target(target)
    uri = located.uri
    head = read_eagle3(uri, located.hub_config, target.num_layers)
    made_for = {"hidden_size": head.target_size, "vocab_size": head.vocab_size}
    if not head.has_embeddings:
        made_for["embedding size"] = head.decoder.hidden_size
    of_target = {**dict.fromkeys(made_for, target.hidden_size), "vocab_size": target.vocab_size}
    if differing := [name for name in made_for if made_for[name] != of_target[name]]:
        name = differing[0]
        reason = (
            f"is a head for a model whose {name} is {made_for[name]:,}, and that of the model is {of_target[name]:,}"
        )
        raise draft_refusal(uri, reason)
    head = replace(head, decoder=split_draft(uri, head.decoder, mesh))
    if formats.quantization is Quantization.INT4:
        formats = formats._replace(quantization=Quantization.INT8)
    kernel = choose_kernel(head.decoder, formats, mesh, kernel_fault)
    shared = () if head.has_embeddings else tuple((spec.name, spec) for spec in target_specs if is_embedding(spec))
    return Eagle3Spec(uri, head.decoder, formats, kernel, mesh, target_dtype, shared, head)
