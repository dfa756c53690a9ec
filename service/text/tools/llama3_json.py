"""The format of Llama 3.1 and later: an answer that is a JSON object with a name and parameters.

Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/#json-based-tool-calling
"""

from dataclasses import replace

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat(
    "llama3_json",
    optional_opening="<|python_tag|>",
    after_name='", "parameters": ',
    between="; ",
    signs=(r"<\|start_header_id\|>|<\|header_start\|>", '"parameters"'),
)
# Meta's own templates refuse several calls in one answer.
SINGLE_FORMAT = replace(FORMAT, allows_several=False, signs=(*FORMAT.signs, "single tool-calls"))
