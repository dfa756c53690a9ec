"""The format of Hermes and Qwen 2.5 and 3: JSON between `<tool_call>` and `</tool_call>`.

Source: https://github.com/NousResearch/Hermes-Function-Calling, https://qwen.readthedocs.io/en/latest/framework/function_call.html
"""

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat(
    name="hermes",
    opening="<tool_call>",
    before_name='{"name": "',
    after_name='", "arguments": ',
    after_arguments="}",
    closing="</tool_call>",
    opens_each=True,
)


def is_of(template: str) -> bool:
    """Return whether a chat template writes calls this way; Qwen 3 Coder's has the markers around XML instead."""
    return "<tool_call>" in template and "<function=" not in template
