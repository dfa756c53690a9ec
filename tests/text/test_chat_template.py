import pytest

from service.errors import InvalidParameter, MalformedCheckpoint
from service.text.chat_template import ChatTemplate

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, special_tokens=None, **arguments):
    return ChatTemplate(source, special_tokens or {}).render(messages, **arguments)


def test_a_conversation_becomes_the_prompt_of_the_template():
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    assert render(CHATML, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not render(CHATML, add_generation_prompt=False).endswith("assistant\n")


def test_what_transformers_gives_a_template_is_there():
    assert render("{{ bos_token }}{{ eos_token }}", special_tokens={"bos_token": "<s>"}) == "<s>"
    assert render("{{ messages | tojson }}", [{"role": "user", "content": "<é>"}]) == (
        '[{"role": "user", "content": "<é>"}]'
    )
    assert render("{{ messages[0] | tojson(indent=1, sort_keys=True) }}").startswith('{\n "content"')
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hi!"
    assert render("{% if tools is none and not documents %}none{% endif %}") == "none"
    assert render("{{ range(3) | list }}{{ range(1, 9, 4)[1] }}{{ '%s-%d' % ('a', 1) }}{{ 2 ** 3 * 2 }}") == (
        "[0, 1, 2]5a-116"
    )


def test_blocks_leave_no_blank_lines():
    assert render("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}") == "x\n"


def test_a_template_that_refuses_says_why_to_the_client():
    with pytest.raises(InvalidParameter, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_stops_the_start():
    with pytest.raises(MalformedCheckpoint, match=r"chat_template\.jinja: line 2 of"):
        ChatTemplate("x\n{% for %}", {})
    with pytest.raises(MalformedCheckpoint, match="nested too deeply"):
        ChatTemplate("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", {})


def test_a_template_sees_the_tools_and_whether_to_begin_the_answer():
    source = "{% for tool in tools or [] %}{{ tool.name }};{% endfor %}{{ add_generation_prompt }}"
    assert render(source, tools=[{"name": "f"}, {"name": "g"}]) == "f;g;True"
    assert render(source, tools=[]) == "True"
    assert render(source, tools=()) == "True"
    assert render(source, add_generation_prompt=False) == "False"
    assert (
        render("{{ messages | length }}{{ messages[-1].content }}{{ documents is none }}", (*USER, *USER)) == "2hiTrue"
    )
    assert render("{{ documents is defined }}{{ tools is defined }}") == "TrueTrue"


def test_a_template_that_fails_is_the_requests_error_without_the_templates_words():
    with pytest.raises(InvalidParameter, match=r"cannot render these messages \(ZeroDivisionError\)") as caught:
        render("{{ 1 / 0 }}")
    assert caught.value.param == "messages"
    with pytest.raises(InvalidParameter, match="has no attribute") as caught:
        render("{{ messages[0].role.foo.bar }}")
    assert caught.value.param == "messages"


def test_a_template_of_the_tests_is_named_as_such():
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: tokenizer_config\.json: line 1 of the chat template: "):
        ChatTemplate("{% for %}", {}, uri="gs://b/m", file="tokenizer_config.json")
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: chat_template\.jinja: the chat template is nested"):
        ChatTemplate("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", {}, uri="gs://b/m")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].tool_calls[0].function.arguments + '.' }}", '{"city": "Köln"}.'),
        ("{{ messages[0].tool_calls[0].function.arguments | tojson }}.", '{"city": "Köln"}.'),
        ("{{ messages[0].tool_calls[0].function.arguments.city }}{# tojson #}", "Köln"),
    ],
)
def test_the_arguments_of_a_call_are_text_for_a_template_that_writes_no_json_itself(template, expected):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"city": "Köln"}}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert ChatTemplate(template, {}).render(messages) == expected
    assert call["function"]["arguments"] == {"city": "Köln"}


TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
AS_SMOLLM3 = (
    "<|im_start|>system\n{% if xml_tools %}<tools>{% for t in xml_tools %}{{ t | string }}{% endfor %}</tools>"
    "<tool_call>{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
)
AS_PHI4_MINI = (
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
    "<|system|>{{ m['content'] }}<|tool|>{{ m['tools'] }}<|/tool|><|end|>"
    "{% else %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
)
DROPPING = "{% if builtin_tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "name", "before", "after"),
    [(AS_SMOLLM3, "hermes", "<tools>", "</tools>"), (AS_PHI4_MINI, "phi4_mini_json", "<|tool|>", "<|/tool|>")],
)
@pytest.mark.parametrize("messages", [USER, [{"role": "system", "content": "Be kind."}, *USER]])
def test_tools_are_offered_as_the_template_takes_them(source, name, before, after, messages):
    template = ChatTemplate(source, {})
    assert template.tool_format is not None
    assert template.tool_format.name == name
    text = template.render(messages, [TOOL])
    assert "get_weather" in text.partition(before)[2].partition(after)[0]
    assert all(message["content"] in text for message in messages)
    assert template.render(messages) == ChatTemplate(source, {}).render(messages)
    assert not template.writes_calls


def test_a_template_that_drops_tools_takes_none():
    assert ChatTemplate(DROPPING, {}).tool_format is None
