"""The format of Hermes and Qwen 2.5 and 3: JSON between `<tool_call>` and `</tool_call>`.

Source: https://github.com/NousResearch/Hermes-Function-Calling, https://qwen.readthedocs.io/en/latest/framework/function_call.html
"""

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat(
    "hermes",
    opening="<tool_call>",
    closing="</tool_call>",
    opens_each=True,
    signs=("<tool_call>",),
    counter_signs=("<function=",),  # Qwen 3 Coder's
)
