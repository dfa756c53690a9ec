"""The formats of Mistral: a JSON list after `[TOOL_CALLS]`, and since 2025 each name with `[ARGS]` and its arguments.

Source: https://docs.mistral.ai/cookbooks/concept-deep-dive-tokenization-tool_calling,
https://github.com/mistralai/mistral-common
"""

from service.text.tools.format import ToolFormat

LIST_FORMAT = ToolFormat(
    name="mistral",
    opening="[TOOL_CALLS]",
    first="[",
    before_name='{"name": "',
    after_name='", "arguments": ',
    after_arguments="}",
    between=", ",
    last="]",
    has_short_ids=True,
)
ARGS_FORMAT = ToolFormat(
    name="mistral_args",
    opening="[TOOL_CALLS]",
    before_name="",
    after_name="[ARGS]",
    after_arguments="",
    opens_each=True,
    has_short_ids=True,
)


def is_list_of(template: str) -> bool:
    """Return whether a chat template writes calls as a list."""
    return "[TOOL_CALLS]" in template and "[ARGS]" not in template


def is_args_of(template: str) -> bool:
    """Return whether a chat template writes each call with its arguments after `[ARGS]`."""
    return "[TOOL_CALLS]" in template and "[ARGS]" in template and "[CALL_ID]" not in template
