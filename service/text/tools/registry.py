"""The known formats of tool calls, found from a checkpoint's chat template."""

from collections.abc import Callable

from service.text.tools import hermes, llama3_json, mistral, plain_json
from service.text.tools.format import ToolFormat

FORMATS: tuple[tuple[Callable[[str], bool], ToolFormat], ...] = (
    (mistral.is_args_of, mistral.ARGS_FORMAT),
    (mistral.is_list_of, mistral.LIST_FORMAT),
    (hermes.is_of, hermes.FORMAT),
    (llama3_json.is_single_of, llama3_json.SINGLE_FORMAT),
    (llama3_json.is_of, llama3_json.FORMAT),
)


def format_of(template: str) -> ToolFormat:
    """Return the format that a chat template writes earlier calls in; JSON alone if it is of no known family."""
    return next((format_ for is_of, format_ in FORMATS if is_of(template)), plain_json.FORMAT)
