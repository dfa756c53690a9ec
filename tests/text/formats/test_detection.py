import pytest

from service.errors import InvalidParameter
from service.settings import Settings, choices_of
from service.text import chat_template
from service.text.chat_template import ChatTemplate
from service.text.formats.detection import detected
from service.text.formats.families import REASONING_PARSERS, TOOL_CALL_PARSERS, by_signs, named, of_reasoning
from service.text.load import end_ids
from service.text.template_process import TemplateProcess
from service.text.tokenizer import Tokenizer
from tests.text.formats.templates import TEMPLATES
from tests.text.small_tokenizers import byte_level

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
        (MISTRAL_IDS, "mistral_args"),
        (QWEN_CODER, "qwen3_coder"),
        (DEEPSEEK, "deepseek_v31"),
        (DEEPSEEK_BLOCK, "deepseek_v3"),
        ("{{ messages }}", "json"),
    ],
)
def test_marks_decide_where_a_template_writes_no_calls(template, name):
    assert by_signs(template).name == name
    shown = "{% for tool in tools %}{{ tool }}{% endfor %}{% if false %}" + template + "{% endif %}"
    assert ChatTemplate(shown, {}).tool_format.name == name


def test_a_template_may_refuse_several_calls_at_once():
    single = LLAMA + """{{- raise_exception("This model only supports single tool-calls at once!") }}"""
    assert by_signs(LLAMA).allows_several
    assert (by_signs(single).name, by_signs(single).allows_several) == ("llama3_json", False)


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
def test_the_operator_may_name_the_format(name):
    template = ChatTemplate("{{ tools }}" + HERMES, {}, tool_call_parser=name)
    assert name in (template.tool_format.name, *template.tool_format.aliases)


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_the_operator_may_name_the_reasoning(name):
    template = ChatTemplate("{{ tools }}" + HERMES, {}, reasoning_parser=name)
    assert template.has_thinking
    assert template.format.has_headers or template.format.thinking == of_reasoning(name).thinking


def test_none_is_a_name_of_no_format():
    template = ChatTemplate("{{ tools }}<think>" + HERMES, {}, tool_call_parser="none", reasoning_parser="none")
    assert (template.tool_format, template.has_thinking) == (None, False)


def test_a_named_format_has_the_variant_of_the_template():
    single = LLAMA + """{{- raise_exception("This model only supports single tool-calls at once!") }}"""
    assert not by_signs(single, named("llama3_json")).allows_several
    assert by_signs(HERMES, named("llama3_json")).allows_several


def test_a_template_without_tools_has_no_format():
    assert ChatTemplate("{{ messages }}{{ mytools }}", {}).tool_format is None


@pytest.mark.parametrize("checkpoint", TEMPLATES)
def test_the_format_is_the_one_that_reads_what_the_template_has_written(checkpoint):
    source, name, opening = TEMPLATES[checkpoint]
    template = ChatTemplate(source, {})
    assert template.tool_format is not None
    assert template.tool_format.name == name
    assert [tags.open for tags in template.format.thinking[:1]] == ([opening] if opening else [])
    assert template.tool_format.allows_several == (checkpoint not in ("gpt-oss", "Llama-3.1"))


def test_a_model_is_not_held_to_a_format_that_it_was_never_taught():
    unknown = "{{ tools }}{% for m in messages %}{% for t in m.tool_calls %}<tool_call>({{ t.function.name }})"
    template = ChatTemplate(unknown + "{% endfor %}{% endfor %}", {})
    assert (template.tool_format.name, template.tool_format.is_taught) == ("json", False)


@pytest.mark.parametrize(
    ("setting", "names"), [("tool_call_parser", TOOL_CALL_PARSERS), ("reasoning_parser", REASONING_PARSERS)]
)
def test_the_settings_take_every_format(setting, names):
    stated = choices_of(Settings.model_fields[setting].annotation)
    assert set(stated) == {"auto", "none", *names}


def test_variables_that_a_request_does_not_set_have_the_operators_values():
    template = ChatTemplate("{{ enable_thinking }}", {}, defaults={"enable_thinking": False})
    assert template.render([{"role": "user", "content": "a"}]) == "False"
    assert template.render([{"role": "user", "content": "a"}], variables={"enable_thinking": True}) == "True"


@pytest.mark.parametrize(
    ("fields", "name", "thinking"),
    [
        ({"tool_calls": {"open": "<|tool_call_start|>", "content": "python-call-list"}}, "lfm2", ()),
        ({"tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json"}}, "hermes", ()),
        ({"tool_calls": {"open": "<tool_call>", "content": "xml-inline"}}, "qwen3_coder", ()),
        ({"thinking": {"open": ["<r>"], "close": "</r>"}}, "mistral", (("<r>", "</r>"),)),
        ({"tool_calls": {"open_pattern": "x+"}}, "mistral", ()),
        ({"tool_calls": {"open": "<own>", "close": "</own>", "content": "json"}}, "json", ()),
    ],
)
def test_transformers_description_of_answers_goes_before_the_template(fields, name, thinking):
    shown = "{% for tool in tools %}{{ tool }}{% endfor %}{# [TOOL_CALLS] #}"
    template = ChatTemplate(shown, {}, response_template={"version": 1, "fields": fields})
    assert template.tool_format.name == name
    assert template.format.thinking == thinking


def test_marks_decide_where_a_template_cannot_be_tried():
    def fails(messages, add_generation_prompt):
        raise InvalidParameter("It took too long.", param="messages")

    form = detected(fails, HERMES, has_tools=True, tool_call_parser=None, reasoning_parser=None)
    assert form.name == "hermes"


def test_answers_end_at_a_formats_own_tokens_whatever_the_checkpoint_says():
    backend = byte_level(600)
    backend.add_special_tokens(["<|call|>", "<|return|>", "<|end_of_message|>"])
    end = backend.token_to_id("<|end|>")
    tokenizer = Tokenizer(backend, eos_ids=frozenset({end, 7}))
    template = ChatTemplate(TEMPLATES["gpt-oss"][0], {})
    assert end_ids(tokenizer, template) == {7, *map(backend.token_to_id, ("<|call|>", "<|return|>"))}
    assert end_ids(tokenizer, ChatTemplate(TEMPLATES["Qwen3"][0], {})) == {end, 7}


@pytest.mark.parametrize("fields", [[1], {"tool_calls": "x"}, {"reasoning_content": 7}, None])
def test_a_malformed_description_of_answers_is_named_and_not_used(fields, caplog):
    described = ChatTemplate("{{ tools }}" + HERMES, {}, response_template={"fields": fields})
    assert described.tool_format.name == "hermes"
    assert "'response_template.fields' is no object of objects" in caplog.text


def test_a_template_that_never_ends_is_tried_once(monkeypatch):
    source = "{{ tools }}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}" + HERMES
    processes = []

    class Counted(TemplateProcess):
        def __init__(self, *arguments):
            super().__init__(*arguments, render_s=0.2)
            self.num_renderings = 0
            processes.append(self)

        def render(self, arguments):
            self.num_renderings += 1
            return super().render(arguments)

    monkeypatch.setattr(chat_template, "TemplateProcess", Counted)
    endless = ChatTemplate(source, {}, is_isolated=True)
    endless.wait()
    assert (endless.tool_format.name, endless.writes_calls, endless.reads_parts) == ("hermes", True, False)
    assert [process.num_renderings for process in processes] == [1]
