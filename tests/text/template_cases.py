"""Chats, and templates that use what the templates of model families use; references are made without the service."""

# ruff: noqa: E501 (templates have long lines)

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

PARAMETERS = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string", "description": 'a "town" <b> é'},
        "days": {"type": ["integer", "null"], "default": None, "enum": [1, 2.5, True]},
    },
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now's.", "parameters": PARAMETERS}}
CLOCK = {
    "function": {"parameters": {"properties": {}, "type": "object"}, "name": "clock", "strict": True},
    "type": "function",
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "weather", "arguments": {"days": 2, "city": "Ulm & é"}},
}
SECOND = {"function": {"arguments": {}, "name": "clock"}, "id": "call00002", "type": "function", "index": 1}
CHAT = [
    {"role": "system", "content": "  Be brief.\n"},
    {"content": "Hi <b> \"you\" 'there'\n", "role": "user", "name": "ann"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello "},
    {"role": "user", "content": "Weather?", "extra": {"b": [1, None], "a": 1.5}},
    {"role": "assistant", "content": None, "tool_calls": [CALL, SECOND], "reasoning_content": "I look."},
    {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"t": 3}'},
    {"role": "tool", "name": "clock", "content": "noon", "tool_call_id": "call00002"},
]
DONE = [*CHAT, {"role": "assistant", "content": "Three degrees.  "}]
DOCUMENTS = [{"title": "Ünder", "text": "One."}, {"text": "Two", "title": "B", "n": 2}]

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
LLAMA = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = strftime_now("fixed %%") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start|>system<|end|>\\n\\nToday: " + date_string + "\\n" + system_message + eos_token }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + eos_token }}
    {%- elif 'tool_calls' in message %}
        {%- for tool_call in message.tool_calls %}
            {{- '{"name": "' + tool_call.function.name + '", "parameters": ' }}{{- tool_call.function.arguments | tojson }}{{- "}" }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- endif %}
    {%- endif %}
{%- endfor %}"""
MISTRAL = """{%- set loop_messages = messages %}{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}{{- bos_token }}
{%- for message in loop_messages %}
  {%- if message["role"] == "user" %}
    {%- if tools is not none and (message == user_messages[-1]) %}
      {{- "[AVAILABLE_TOOLS] [" }}
      {%- for tool in tools %}{%- set tool = tool.function %}
        {{- '{"type": "function", "function": {' }}
        {%- for key, val in tool.items() if key != "return" %}
          {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
          {%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
        {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
      {%- endfor %}
      {{- "[/AVAILABLE_TOOLS]" }}
    {%- endif %}
    {{- "[INST] " + message["content"] + "[/INST]" }}
  {%- elif message.tool_calls is defined and message.tool_calls is not none %}
    {{- "[TOOL_CALLS] [" }}
    {%- for tool_call in message.tool_calls %}
      {%- set out = tool_call.function|tojson %}{{- out[:-1] }}
      {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have nine characters") }}{%- endif %}
      {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
    {%- endfor %}
  {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token}}
  {%- elif message["role"] == "tool" %}{{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}' }}
  {%- endif %}
{%- endfor %}"""
MACROS = """{%- macro kind(schema, depth=0) -%}
    {%- if schema.type is string -%}{{ schema.type | upper }}{%- elif schema.type is iterable -%}{{ schema.type | join('|') }}
    {%- endif -%}{%- if schema.enum -%}({{ schema.enum | map('tojson') | join(', ') }}){%- endif -%}
    {%- for name, inner in (schema.properties or {}) | dictsort -%}
        {{ '\\n' ~ '  ' * (depth + 1) ~ name }}{{ '?' if name not in (schema.required or []) }}: {{ kind(inner, depth + 1) }}
    {%- endfor -%}
{%- endmacro -%}
{%- for tool in tools -%}{%- if loop.index0 == 5 -%}{% break %}{%- endif -%}
// {{ tool.function.description or '-' }}
type {{ tool.function.name | replace('-', '_') }} = {{ kind(tool.function.parameters) }};
{% endfor -%}
{%- for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}
{% generation %}{{ loop.index }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}:{{ message.role[:1] | capitalize }}{% endgeneration %}
{%- endfor %}"""
WHOLE = "{# content #}{{ messages | tojson }}|{{ tools | tojson(sort_keys=True, separators=(',', ':')) }}|{{ tools | tojson(ensure_ascii=True) }}"
BLOCKS = "x\n  {% if true %}\n  y {{ messages[0].role }}\n    {%- if add_generation_prompt %}\n  z\n  {% endif %}\n {# gone #}\n{% endif %}\nend\n"
EVERY_TOKEN = "{{ [bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, image_token] | join(' ') }}{{ nothing }}"
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TRIMMED = PLAIN.replace("m.content", "m.content | trim")
RAG = "{% for d in documents %}{{ d.title }}: {{ d.text }}{{ d | tojson }};{% endfor %}{{ messages[-1].content }}"
SUMS = "{% set x = {'a': [1, 2]} %}{{ x.a | sum }}{{ x['a'][1:] }}{{ 7 // 2 }}{{ dict(b=1) | tojson }}{{ messages | length }}{{ 'a' in x }}{{ x.get('z', 'none') }}"

TEMPLATES: dict[str, Any] = {
    "qwen": QWEN, "llama": LLAMA, "mistral": MISTRAL, "macros": MACROS, "whole": WHOLE, "blocks": BLOCKS,
    "every_token": EVERY_TOKEN, "plain": PLAIN, "trimmed": TRIMMED, "rag": RAG, "sums": SUMS,
    "named": {"default": PLAIN, "tool_use": QWEN},
}  # fmt: skip
TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "<sep>", "pad_token": "<pad>",
    "cls_token": "<cls>", "mask_token": "<mask>", "image_token": "<image>",
}  # fmt: skip


class Case(NamedTuple):
    """A chat, and what is asked for besides."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    continues: bool = False
    variables: Mapping[str, Any] = MappingProxyType({})


CASES = {
    "least": Case(CHAT[1:2]),
    "turns": Case(CHAT[:4]),
    "tools": Case(CHAT[:2], [WEATHER]),
    "calls": Case(CHAT, [WEATHER, CLOCK]),
    "done": Case(DONE, [CLOCK, WEATHER]),
    "documents": Case(CHAT[1:2], None, DOCUMENTS),
    "continued": Case(DONE[1:3], None, None, True),
    "no_thinking": Case(CHAT[:2], None, None, False, {"enable_thinking": False, "date_string": "1 May"}),
}
