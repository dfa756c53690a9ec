"""A request's fields about its prompt to the variables of the model's chat template."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from service.api.conversation import Conversation, Effort
from service.text.chat_template import ChatTemplate

EFFORT = "reasoning_effort"
# What templates call the switch of thinking that they have. Source: the templates of Qwen3, and of DeepSeek V3.1 and
# Granite 3.3
SWITCHES = ("enable_thinking", "thinking")
# Degrees of thinking that not every template has, and the nearest one that templates with degrees have.
NEAREST_LEVELS = {"minimal": "low", "xhigh": "high", "max": "high"}


class TemplateVariables(NamedTuple):
    """The variables that a request sets, and its fields that the template has no use for."""

    values: Mapping[str, Any]
    ignored: Sequence[str]


def template_variables(conversation: Conversation, template: ChatTemplate) -> TemplateVariables:
    """Return the variables that a request sets, of those that the template reads."""
    # Defends against T11.
    values = {name: value for name, value in conversation.variables.items() if name in template.variables}
    ignored = [f"chat_template_kwargs.{name[:64]}" for name in conversation.variables if name not in values]
    if (effort := conversation.effort) is not None:
        variables = _effort_variables(effort, template)
        if not variables:
            ignored.append(effort.at)
        values = variables | values
    return TemplateVariables(values, ignored)


def _effort_variables(effort: Effort, template: ChatTemplate) -> dict[str, Any]:
    """Return an effort as the template has it: its degrees, its switch, or nothing."""
    switch = next((name for name in SWITCHES if name in template.variables), None)
    if switch is not None and (effort.is_off or EFFORT not in template.variables):
        return {switch: not effort.is_off}
    if EFFORT not in template.variables or effort.level is None:
        return {} if switch is None else {switch: True}
    if re.search(rf"""["']{re.escape(effort.level)}["']""", template.source):
        return {EFFORT: effort.level}
    return {} if effort.is_off else {EFFORT: NEAREST_LEVELS.get(effort.level, effort.level)}
