"""A request's fields about its prompt to the arguments of the model's chat template."""

from typing import Any

from service.api.schema.template import TemplateFields
from service.errors import InvalidParameter, UnsupportedParameter
from service.text.chat_template import ChatTemplate

EFFORT = "reasoning_effort"
# The variable of templates that know thinking on and off, and no degrees (Qwen3's).
SWITCH = "enable_thinking"


def template_variables(fields: TemplateFields, template: ChatTemplate) -> dict[str, Any]:
    """Return the variables that a request sets, each of which the template reads.

    Raises:
        InvalidParameter, UnsupportedParameter: the template does not read one of them.
    """
    for name in fields.chat_template_kwargs:
        if name not in template.variables:
            param = f"chat_template_kwargs.{name[:64]}"
            known = ", ".join(f"'{known}'" for known in sorted(template.variables)) or "no variable"
            raise InvalidParameter(f"Invalid '{param}': the model's chat template reads {known}.", param=param)
    return fields.chat_template_kwargs | _effort(fields, template)


def _effort(fields: TemplateFields, template: ChatTemplate) -> dict[str, Any]:
    if fields.reasoning_effort is None:
        return {}
    if EFFORT in template.variables:
        return {EFFORT: fields.reasoning_effort}
    if SWITCH not in template.variables:
        raise UnsupportedParameter(EFFORT, "the model's chat template knows no degrees of thinking. Leave it out.")
    if fields.reasoning_effort != "none":
        detail = f"the model's chat template knows thinking on and off only. Send 'none', or '{SWITCH}: true' in "
        raise UnsupportedParameter(EFFORT, f"{detail}'chat_template_kwargs'.")
    if SWITCH in fields.chat_template_kwargs:
        param = f"chat_template_kwargs.{SWITCH}"
        raise InvalidParameter(f"'{param}' contradicts '{EFFORT}'; send one.", param=param)
    return {SWITCH: False}
