"""The formats of quantized linear layers in checkpoints, and the tensors that hold each layer."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

WIDE = ("F32", "F16", "BF16", "F64")  # safetensors' names
FLOATING = (*WIDE, "F8_E4M3", "F8_E5M2")  # whose numbers are cast as they are, if no scales belong to them
INTEGERS = ("I64", "I32")
WORD_BITS = 32  # of a word of packed values
MXFP4_BLOCK = 32  # numbers with one exponent, in 16 bytes
NVFP4_BLOCK = 16  # numbers with one scale, in 8 bytes
# Of modules of a text model, by itself or with images, in files of several ages.
PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "language_model.")
_PREFIX = re.compile(r"^(model\.|language_model\.)*")


class Encoding(StrEnum):
    """The formats that are read."""

    INT8 = "int8"  # int8 values, a scale for each row
    FP8 = "fp8"  # float8_e4m3fn values, a scale for the tensor, each row or each block
    PACKED = "packed"  # compressed-tensors: rows of offset integers in words, a scale for each row's groups
    AWQ = "awq"  # columns of integers in words, interleaved
    GPTQ = "gptq"  # columns of integers in words, each column in a group that a tensor may name
    MXFP4 = "mxfp4"  # experts of pairs of numbers of 4 bits, an exponent for each 32
    MXFP4_PACKED = "mxfp4-pack-quantized"  # compressed-tensors: the same in every layer
    NVFP4 = "nvfp4"  # pairs of numbers of 4 bits, a scale in float8_e4m3fn for each 16, and one of the tensor


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = WIDE  # one of them
    role: str = "weight"  # among the tensors of a weight


@dataclass(frozen=True)
class LayerStorage:
    """The storage of all linear layers but those that a rule excepts."""

    encoding: Encoding
    bits: int = 8
    block: tuple[int | None, int | None] = (1, None)  # rows and columns that share a scale; None for all
    has_zeros: bool = False  # whether integers have zero points; otherwise 0 is in the middle of their range
    is_zero_less_one: bool = False  # whether zero points are stored less one
    has_order: bool = False  # whether columns of a group lie apart; else groups are of consecutive columns
    scale_suffix: str = "_scale"  # in the name of an FP8 weight's scales
    is_divided: bool = False  # whether the scale of an NVFP4 tensor divides, as in compressed-tensors; else multiplies
    is_transposed: bool = False  # whether a stack of experts is stored [expert, in, out]
    # Patterns of modules' whole names, of which the first that matches decides: another storage, or None for weights
    # that are not quantized.
    rules: "tuple[tuple[str, LayerStorage | None], ...]" = ()
    is_kept: bool = False  # whether numbers of 4 bits stay so on the device, and not as rows of 8 bits
    keeps_undivided: bool = False  # whether those of experts and of FP4 do, which devices do not divide

    @property
    def is_exact(self) -> bool:
        """Whether every type of activations holds the weights exactly, so that they are not quantized anew."""
        return self.encoding in (Encoding.MXFP4, Encoding.MXFP4_PACKED)

    @property
    def is_fp4(self) -> bool:
        """Whether its numbers are pairs of float4_e2m1fn in bytes, the earlier one in the lower bits."""
        return self.encoding in (Encoding.MXFP4, Encoding.MXFP4_PACKED, Encoding.NVFP4)

    @property
    def obstacle_to_four_bits(self) -> str | None:
        """Why no weight can stay in 4 bits on a device; None if some can."""
        others = [storage for _, storage in self.rules if storage is not None]
        can_some = any(storage.obstacle_to_four_bits is None for storage in others)
        return None if can_some else self.own_obstacle_to_four_bits

    @property
    def own_obstacle_to_four_bits(self) -> str | None:
        """Why weights that no rule excepts cannot stay in 4 bits on a device; None if they can."""
        if self.encoding in (Encoding.INT8, Encoding.FP8) or self.bits != 4:
            return f"stores {self.encoding.value} of {self.bits} bits"
        return "stores the columns of a group apart (desc_act, or actorder = 'group')" if self.has_order else None

    def of(self, weight: str) -> "LayerStorage | None":
        """Return the storage of a linear layer's weight, by its name in a checkpoint that is not quantized.

        It is None for a weight that is not quantized. Names may begin as those of a text model or a part of another.
        """
        if self.encoding is Encoding.MXFP4:
            return self if ".experts." in weight else None
        bare = _PREFIX.sub("", weight.removesuffix(".weight"))
        for pattern, storage in self.rules:
            if any(re.fullmatch(pattern, f"{prefix}{bare}") for prefix in PREFIXES):
                return (
                    None
                    if storage is None
                    else replace(storage, is_kept=self.is_kept, keeps_undivided=self.keeps_undivided)
                )
        return self

    def holds(self, weight: str) -> bool:
        """Return whether a weight of a linear layer is quantized, by its name in a checkpoint that is not."""
        return self.of(weight) is not None

    def group_size(self, num_in: int) -> int:
        """Return how many columns share a scale."""
        return self.block[1] or num_in

    def misfit(self, shape: tuple[int, ...]) -> str | None:
        """Return why a weight of a shape, outputs and inputs, is not stored so; None if it may be."""
        *_, num_out, num_in = shape
        if self.is_fp4:
            block = self.group_size(num_in)
            return f"its {num_in} columns are not a multiple of the {block} of a block" if num_in % block else None
        group_size, per_word = self.group_size(num_in), WORD_BITS // self.bits
        if self.encoding is not Encoding.FP8 and num_in % group_size:
            return f"its {num_in} columns are not a multiple of group_size = {group_size} in config.json"
        if self.encoding in (Encoding.AWQ, Encoding.GPTQ) and num_out % per_word:
            return f"its {num_out} outputs are not a multiple of the {per_word} that are packed in a word"
        if self.encoding is Encoding.GPTQ and num_in % per_word:
            return f"its {num_in} columns are not a multiple of the {per_word} that are packed in a word"
        return None

    def tensors(self, weight: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return the tensors that hold a weight.

        Args:
            weight: its name in a checkpoint that is not quantized.
            shape: outputs and inputs, after the number of experts if they are stacked.

        Source: the modules of this package name that of each format.
        """
        *_, num_out, num_in = shape
        module = weight.removesuffix(".weight")
        groups, per_word = -(-num_in // self.group_size(num_in)), WORD_BITS // self.bits
        match self.encoding:
            case Encoding.INT8:
                return (
                    StoredTensor(weight, shape, ("I8",)),
                    StoredTensor(f"{weight}_scale", (num_out, 1), role="scales"),
                )
            case Encoding.FP8:
                rows = -(-num_out // (self.block[0] or num_out))
                scales = (1,) if self.block == (None, None) else (rows, groups)
                return (
                    StoredTensor(weight, shape, ("F8_E4M3",), "values"),
                    StoredTensor(f"{weight}{self.scale_suffix}", scales, role="scales"),
                )
            case Encoding.PACKED:
                made = [
                    StoredTensor(f"{weight}_packed", (num_out, -(-num_in // per_word)), ("I32",), "values"),
                    StoredTensor(f"{weight}_scale", (num_out, groups), role="scales"),
                    StoredTensor(f"{weight}_shape", (2,), ("I64", "I32"), "shape"),
                ]
                if self.has_zeros:
                    zeros = (-(-num_out // per_word), groups)
                    made.append(StoredTensor(f"{weight}_zero_point", zeros, ("I32",), "zeros"))
                if self.has_order:
                    made.append(StoredTensor(f"{weight}_g_idx", (num_in,), ("I32",), "group_of_column"))
                return tuple(made)
            case Encoding.MXFP4 | Encoding.MXFP4_PACKED | Encoding.NVFP4:
                return self._fp4_tensors(weight, shape)
            case Encoding.AWQ:
                return (
                    StoredTensor(f"{module}.qweight", (num_in, num_out // per_word), ("I32",), "values"),
                    StoredTensor(f"{module}.qzeros", (groups, num_out // per_word), ("I32",), "zeros"),
                    StoredTensor(f"{module}.scales", (groups, num_out), role="scales"),
                )
            case Encoding.GPTQ:
                return (
                    StoredTensor(f"{module}.qweight", (num_in // per_word, num_out), ("I32",), "values"),
                    StoredTensor(f"{module}.qzeros", (groups, num_out // per_word), ("I32",), "zeros"),
                    StoredTensor(f"{module}.scales", (groups, num_out), role="scales"),
                    StoredTensor(f"{module}.g_idx", (num_in,), ("I32",), "group_of_column"),
                )

    def _fp4_tensors(self, weight: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        *outer, num_in = shape
        pairs, blocks = (*outer, num_in // 2), (*outer, num_in // self.group_size(num_in))
        if self.encoding is Encoding.MXFP4:
            return (
                StoredTensor(f"{weight}_blocks", (*blocks, MXFP4_BLOCK // 2), ("U8",), "values"),
                StoredTensor(f"{weight}_scales", blocks, ("U8",), "scales"),
            )
        if self.encoding is Encoding.MXFP4_PACKED:
            return (
                StoredTensor(f"{weight}_packed", pairs, ("U8",), "values"),
                StoredTensor(f"{weight}_scale", blocks, ("U8",), "scales"),
            )
        if self.is_transposed:
            pairs, blocks = ((*each[:-2], *each[:-3:-1]) for each in (pairs, blocks))
        # ModelOpt names the scales of a stack of experts, which is no module, after it.
        prefix = weight if weight.endswith(".weight") or self.is_divided else f"{weight}_weight"
        return (
            StoredTensor(f"{weight}_packed" if self.is_divided else weight, pairs, ("U8",), "values"),
            StoredTensor(f"{prefix}_scale", blocks, ("F8_E4M3",), "scales"),
            StoredTensor(f"{prefix}_{'global_scale' if self.is_divided else 'scale_2'}", (), role="tensor_scale"),
        )
