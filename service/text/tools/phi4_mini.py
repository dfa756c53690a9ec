"""The format of Phi-4-mini: a JSON list between `<|tool_call|>` and `<|/tool_call|>`.

Source: https://huggingface.co/microsoft/Phi-4-mini-instruct (README.md, tokenizer_config.json)
"""

from service.text.tools.format import ToolFormat

_OPENING, _CLOSING = "<|tool_call|>", "<|/tool_call|>"

FORMAT = ToolFormat(
    "phi4_mini_json",
    opening=_OPENING,
    first="[",
    between=", ",
    last=f"]{_CLOSING}",
    special_parts=(_CLOSING,),
    signs=(r"<\|/tool\|>",),
)
