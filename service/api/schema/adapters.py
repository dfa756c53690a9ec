"""The body of vLLM's requests about adapters.

Source: https://docs.vllm.ai/en/latest/features/lora.html (dynamically serving LoRA adapters)
"""

from typing import ClassVar

from pydantic import Field

from service.api.schema.wire import ANY, NeutralValues, WireObject


class AdapterRequest(WireObject):
    """What POST /v1/load_lora_adapter and /v1/unload_lora_adapter take."""

    hints: ClassVar[NeutralValues] = {"lora_int_id": ANY, "is_3d_lora_weight": ANY, "base_model_name": ANY}

    lora_name: str = Field(min_length=1)
    """The model that requests name."""
    lora_path: str | None = None
    """Of its folder inside the catalogue: an address, or a path below that of the catalogue."""
    load_inplace: bool = False
    """Whether it takes the place of an adapter that was loaded under this name."""
