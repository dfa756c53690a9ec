"""The format of Llama 3.1 and later: an answer that is a JSON object with a name and parameters.

Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/#json-based-tool-calling
"""

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat(
    name="llama3_json",
    optional_opening="<|python_tag|>",
    before_name='{"name": "',
    after_name='", "parameters": ',
    after_arguments="}",
    between="; ",
)


def is_of(template: str) -> bool:
    """Return whether a chat template writes calls this way."""
    return "<|start_header_id|>" in template and '"parameters"' in template
