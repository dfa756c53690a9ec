"""The formats of Mistral: a JSON list after `[TOOL_CALLS]`, and since 2025 each name with `[ARGS]` and its arguments.

Source: https://docs.mistral.ai/cookbooks/concept-deep-dive-tokenization-tool_calling,
https://github.com/mistralai/mistral-common
"""

from service.text.tools.format import ToolFormat

_OPENING = "[TOOL_CALLS]"

LIST_FORMAT = ToolFormat(
    "mistral",
    opening=_OPENING,
    first="[",
    between=", ",
    last="]",
    has_short_ids=True,
    signs=(r"\[TOOL_CALLS\]",),
    counter_signs=(r"\[ARGS\]",),
)
ARGS_FORMAT = ToolFormat(
    "mistral_args",
    opening=_OPENING,
    before_name="",
    after_name="[ARGS]",
    after_arguments="",
    opens_each=True,
    has_short_ids=True,
    signs=(r"\[TOOL_CALLS\]", r"\[ARGS\]"),
    counter_signs=(r"\[CALL_ID\]",),
)
