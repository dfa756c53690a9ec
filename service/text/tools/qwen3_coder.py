"""The format of Qwen 3 Coder: elements between `<tool_call>` and `</tool_call>`, one for each argument.

A text stands as it is; any other value as JSON.
Source: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct (chat_template.jinja, qwen3coder_tool_parser.py)
"""

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat(
    "qwen3_coder",
    opening="<tool_call>",
    before_name="<function=",
    after_name=">",
    has_elements=True,
    after_arguments="\n</function>",
    closing="</tool_call>",
    opens_each=True,
    signs=("<tool_call>", "<function="),
)
