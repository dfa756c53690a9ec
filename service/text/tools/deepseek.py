"""The formats of DeepSeek V3 and R1, whose arguments are a block of Markdown, and of V3.1, whose arguments stand alone.

Source: https://huggingface.co/deepseek-ai/DeepSeek-V3 and .../DeepSeek-V3.1 (tokenizer_config.json)
"""

from dataclasses import replace

from service.text.tools.format import ToolFormat

_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

V31_FORMAT = ToolFormat(
    "deepseek_v31",
    opening="<｜tool▁calls▁begin｜>",
    before_name=_BEGIN,
    after_name=_SEPARATOR,
    after_arguments=_END,
    last="<｜tool▁calls▁end｜>",
    special_parts=(_BEGIN, _SEPARATOR, _END),
    signs=("<｜tool▁calls▁begin｜>",),
)
V3_FORMAT = replace(
    V31_FORMAT,
    name="deepseek_v3",
    before_name=f"{_BEGIN}function{_SEPARATOR}",
    after_name="\n```json\n",
    after_arguments=f"\n```{_END}",
    between="\n",
    signs=(*V31_FORMAT.signs, "```json"),
)
