import pytest

from service.text.chat_template import ChatTemplate
from service.text.tools.registry import format_of

# The parts of published templates that write earlier calls.
HERMES = """{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- '}\\n</tool_call>' }}"""
LLAMA = """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{{- '{"name": "' + tool_call.name + '", ' }}
{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}"""
MISTRAL = (
    """{{- "[TOOL_CALLS][" }}{%- for tool_call in message.tool_calls %}{{- tool_call.function|tojson }}{% endfor %}"""
)
MISTRAL_ARGS = """{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}"""
MISTRAL_IDS = """{{- "[TOOL_CALLS]" + name + "[CALL_ID]" + id + "[ARGS]" + arguments }}"""
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
        (QWEN_CODER, "json"),
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


def test_a_template_without_tools_has_no_format():
    assert ChatTemplate("{{ messages }}{{ mytools }}", {}).tool_format is None
