from typing import get_args

import pytest

from service.settings import Settings
from service.text.chat_template import ChatTemplate
from service.text.tools.registry import FORMATS, format_of

# The parts of published templates that write earlier calls.
HERMES = """{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- '}\\n</tool_call>' }}"""
LLAMA = """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{{- '{"name": "' + tool_call.name + '", ' }}
{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}"""
MISTRAL = (
    """{{- "[TOOL_CALLS][" }}{%- for tool_call in message.tool_calls %}{{- tool_call.function|tojson }}{% endfor %}"""
)
MISTRAL_ARGS = """{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}"""
MISTRAL_IDS = """{{- "[TOOL_CALLS]" + name + "[CALL_ID]" + id + "[ARGS]" + arguments }}"""
DEEPSEEK = "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}"
DEEPSEEK_BLOCK = DEEPSEEK.replace("arguments", r"'\n```json\n' + arguments + '\n```'")
QWEN_CODER = """{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}"""


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        (LLAMA, "llama3_json"),
        (LLAMA.replace("start_header_id", "header_start"), "llama3_json"),
        (LLAMA.replace("start_header_id", "im_start"), "json"),
        (MISTRAL, "mistral"),
        (MISTRAL_ARGS, "mistral_args"),
        (MISTRAL_IDS, "json"),
        (QWEN_CODER, "qwen3_coder"),
        (DEEPSEEK, "deepseek_v31"),
        (DEEPSEEK_BLOCK, "deepseek_v3"),
        ("{{ messages }}", "json"),
    ],
)
def test_the_format_is_that_of_the_template(template, name):
    assert format_of(template).name == name
    assert ChatTemplate("{% for tool in tools %}{% endfor %}" + template, {}).tool_format.name == name


def test_a_template_may_refuse_several_calls_at_once():
    single = LLAMA + """{{- raise_exception("This model only supports single tool-calls at once!") }}"""
    assert format_of(LLAMA).allows_several
    assert (format_of(single).name, format_of(single).allows_several) == ("llama3_json", False)


@pytest.mark.parametrize(
    "name", ["deepseek_v3", "deepseek_v31", "hermes", "json", "llama3_json", "mistral", "mistral_args", "qwen3_coder"]
)
def test_the_operator_may_name_the_format(name):
    assert {form.name for form in FORMATS} >= {name}
    template = ChatTemplate("{{ tools }}" + HERMES, {}, tool_call_parser=name)
    assert template.tool_format.name == name


def test_the_setting_takes_every_format():
    stated = get_args(Settings.model_fields["tool_call_parser"].annotation)
    assert set(stated) == {"auto", *(form.name for form in FORMATS)}


def test_a_named_format_has_the_variant_of_the_template():
    single = LLAMA + """{{- raise_exception("This model only supports single tool-calls at once!") }}"""
    assert not format_of(single, "llama3_json").allows_several
    assert format_of(HERMES, "llama3_json").allows_several


def test_a_template_without_tools_has_no_format():
    assert ChatTemplate("{{ messages }}{{ mytools }}", {}).tool_format is None
