"""The known formats of tool calls, found by TOOL_CALL_PARSER and from a checkpoint's chat template."""

from service.text.tools import deepseek, harmony, hermes, llama3_json, mistral, phi4_mini, plain_json, qwen3_coder
from service.text.tools.format import ToolFormat

# Of several that fit a template, the first.
FORMATS: tuple[ToolFormat, ...] = (
    harmony.FORMAT,
    deepseek.V3_FORMAT,
    deepseek.V31_FORMAT,
    mistral.ARGS_FORMAT,
    mistral.LIST_FORMAT,
    phi4_mini.FORMAT,
    qwen3_coder.FORMAT,
    hermes.FORMAT,
    llama3_json.SINGLE_FORMAT,
    llama3_json.FORMAT,
    plain_json.FORMAT,
)


def format_of(template: str, name: str | None = None) -> ToolFormat:
    """Return the format that a chat template writes earlier calls in; JSON alone if it is of no known family.

    Args:
        template: the checkpoint's chat template.
        name: the format that the operator has set, if any; its variants still follow the template.
    """
    named = [form for form in FORMATS if name in (None, form.name)]
    return next((form for form in named if form.is_of(template)), named[-1])
