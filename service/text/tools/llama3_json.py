"""The format of Llama 3.1 and later: an answer that is a JSON object with a name and parameters.

Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/#json-based-tool-calling
"""

from dataclasses import replace

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat(
    name="llama3_json",
    optional_opening="<|python_tag|>",
    before_name='{"name": "',
    after_name='", "parameters": ',
    after_arguments="}",
    between="; ",
)
SINGLE_FORMAT = replace(FORMAT, allows_several=False)


def is_of(template: str) -> bool:
    """Return whether a chat template writes calls this way."""
    has_headers = "<|start_header_id|>" in template or "<|header_start|>" in template
    return has_headers and '"parameters"' in template


def is_single_of(template: str) -> bool:
    """Return whether a chat template moreover refuses several calls in one answer, as Meta's own do."""
    return is_of(template) and "single tool-calls" in template
