# ruff: noqa: E501
"""Chat templates in the manner of each family: its marks, its way to write calls, and its quirks."""

TOOLS = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
ARGUMENTS = "{{ c.arguments | tojson }}"
OBJECT = '{"name": "{{ c.name }}", "arguments": ' + ARGUMENTS + "}"
LIST = (
    "{% for t in m.tool_calls %}{% set c = t.function %}{% if not loop.first %}, {% endif %}" + OBJECT + "{% endfor %}"
)


def each(body, between=""):
    """Return a template of all calls of a message `m`, each of which is `c`."""
    return (
        "{% for t in m.tool_calls %}{% set c = t.function %}"
        + ("{% if not loop.first %}" + between + "{% endif %}" if between else "")
        + body
        + "{% endfor %}"
    )


def chat(calls, thinking="", begin="", before="", turn=("<|im_start|>", "\n", "<|im_end|>\n"), tools=TOOLS, result=""):
    """Return a template with turns of a family; `begin` is behind the beginning of an answer, `result` of a result."""
    start, line, end = turn
    return (
        f"{tools}{before}{{% for m in messages %}}{start}{{{{ m.role }}}}{line}"
        f"{{% if m.role == 'assistant' %}}{thinking}{{% elif m.role == 'tool' %}}{result}{{% endif %}}"
        f"{{{{ m.content }}}}{{% if m.tool_calls %}}{calls}{{% endif %}}{end}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{start}assistant{line}{begin}{{% endif %}}"
    )


def thought(before, behind, key="reasoning_content"):
    return f"{{% if m.{key} %}}{before}{{{{ m.{key} }}}}{behind}{{% endif %}}"


def elements(open_, named, close, line=""):
    value = "{{ v if v is string else v | tojson }}"
    return f"{{% for k, v in c.arguments.items() %}}{open_}{{{{ k }}}}{named}{line}{value}{line}{close}\n{{% endfor %}}"


HERMES = each(f"\n<tool_call>\n{OBJECT}\n</tool_call>")
CODER = each(
    "<tool_call>\n<function={{ c.name }}>\n"
    + elements("<parameter=", ">", "</parameter>", "{{ '\\n' }}")
    + "</function>\n</tool_call>",
    "{{ '\\n' }}",
)
SEED = each(
    "<seed:tool_call>\n<function={{ c.name }}>\n"
    + elements("<parameter=", ">", "</parameter>")
    + "</function>\n</seed:tool_call>"
)
GLM = each(
    "\n<tool_call>{{ c.name }}\n" + elements("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>") + "</tool_call>"
)
GLM_47 = each(
    "<tool_call>{{ c.name }}{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>"
    "{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>"
)
MINIMAX = (
    "\n<minimax:tool_call>\n"
    + each('<invoke name="{{ c.name }}">\n' + elements('<parameter name="', '">', "</parameter>") + "</invoke>\n")
    + "</minimax:tool_call>"
)


def dsml(section):
    parameter = (
        '{% for k, v in c.arguments.items() %}<{{ d }}parameter name="{{ k }}" string="{{ \'true\' if v is string else '
        "'false' }}\">{{ v if v is string else v | tojson }}</{{ d }}parameter>\n{% endfor %}"
    )
    body = each('<{{ d }}invoke name="{{ c.name }}">\n' + parameter + "</{{ d }}invoke>\n")
    return "{% set d = '｜DSML｜' %}\n\n<{{ d }}" + section + ">\n" + body + "</{{ d }}" + section + ">"


DEEPSEEK_31 = (
    "<｜tool▁calls▁begin｜>"
    + each("<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}<｜tool▁call▁end｜>")
    + "<｜tool▁calls▁end｜>"
)
DEEPSEEK_3 = (
    "<｜tool▁calls▁begin｜>"
    + each(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.name }}{{ '\\n```json\\n' + c.arguments + '\\n```' }}"
        "<｜tool▁call▁end｜>",
        "{{ '\\n' }}",
    )
    + "<｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|>"
    "{% for t in m.tool_calls %}<|tool_call_begin|>{{ t.id }}"
    "<|tool_call_argument_begin|>{{ t.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>"
)
LITERAL = "{% if v is string %}{{ q }}{{ v }}{{ q }}{% else %}{{ v | string }}{% endif %}"
PYTHON = each(
    "{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}="
    '{% if v is string %}{{ "\'" + v + "\'" }}{% else %}{{ v }}{% endif %}{% if not loop.last %}, {% endif %}{% endfor %})',
    ", ",
)
GEMMA = """{% macro value(v) %}{% if v is string %}Q{{ v }}Q{% elif v is boolean %}{{ 'true' if v else 'false' }}
{%- elif v is mapping %}{{ '{' }}{% for k, w in v.items() %}{{ k }}:{{ value(w) }}{% if not loop.last %},{% endif %}
{%- endfor %}{{ '}' }}{% elif v is sequence %}[{% for w in v %}{{ value(w) }}{% if not loop.last %},{% endif %}
{%- endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}"""


def gemma(before, behind, quote):
    body = (
        before + "call:{{ c.name }}{{ '{' }}{% for k, v in c.arguments | dictsort %}{{ k }}:{{ value(v) }}"
        "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}" + behind
    )
    return GEMMA.replace("Q", quote), each(body)


def gemma_chat(before, behind, quote, thinking="", begin=""):
    macro, calls = gemma(before, behind, quote)
    return macro + chat(calls, thinking, begin, turn=("<|turn>", "\n", "<turn|>\n"), result="response:{{ m.name }} ")


MISTRAL_TURN = ("[INST]", "", "</s>")
CHECK_ID = "{% if t.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
SINGLE = (
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}"
    "{% endif %}{% set c = m.tool_calls[0].function %}"
)
LLAMA_TURN = ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>")
LLAMA = SINGLE + '{{- \'{"name": "\' + c.name + \'", "parameters": \' }}{{ c.arguments | tojson }}{{ "}" }}'
# No text beside calls, as Meta's.
LLAMA_CHAT = (
    TOOLS
    + "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if m.tool_calls %}"
    + LLAMA
    + "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% for t in tools or [] %}type {{ t.function.name }} = () => any;{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% set c = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json"
    "<|message|>{{ c.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
APERTUS = "<|tools_prefix|>[" + each('{"{{ c.name }}": {{ c.arguments | tojson }}}', ", ") + "]<|tools_suffix|>"
PHI = (
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
    "<|system|>{{ m['content'] }}<|tool|>{{ m['tools'] }}<|/tool|><|end|>"
    "{% else %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
)
SMOLLM = (
    "<|im_start|>system\n{% if xml_tools %}<tools>{% for t in xml_tools %}{{ t | string }}{% endfor %}</tools>"
    '<tool_call>{"name": ...}</tool_call>{% endif %}'
    "{% for m in messages %}{% if m.role == 'assistant' and '</think>' in m.content %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n{% endif %}"
)
THINK = thought("<think>\n", "\n</think>\n\n")
TIGHT = thought("<think>", "</think>")

# By the checkpoint: its template, the name of its format, its reasoning's opening tag.
TEMPLATES: dict[str, tuple[str, str, str]] = {
    "gpt-oss": (HARMONY, "openai", ""),
    "Qwen3": (chat(HERMES, THINK), "hermes", "<think>"),
    "Qwen2.5": (chat(HERMES), "hermes", ""),
    "Qwen3-Thinking": (chat(HERMES, THINK, "<think>\n"), "hermes", "<think>"),
    "Qwen3-Coder": (chat(CODER), "qwen3_coder", ""),
    "Qwen3.5": (chat(CODER, THINK, "<think>\n"), "qwen3_coder", "<think>"),
    "Nemotron-3": (chat(CODER, THINK, "{% if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}"),
                   "qwen3_coder", "<think>"),
    "MiMo": (
        chat(each("<tool_call>\n<function={{ c.name }}>\n" + elements("<parameter=", ">", "</parameter>")
                  + "</function>\n</tool_call>", "{{ '\\n' }}"), TIGHT), "qwen3_coder", "<think>"
    ),
    "Seed-OSS": (chat(SEED, thought("<seed:think>", "</seed:think>")), "seed_oss", "<seed:think>"),
    "GLM-4.5": (chat(GLM, thought("\n<think>", "</think>\n"), turn=("<|", "|>", "\n")), "glm45", "<think>"),
    "GLM-4.7": (chat(GLM_47, TIGHT, "<think>", turn=("<|", "|>", "")), "glm45", "<think>"),
    "MiniMax-M2": (chat(MINIMAX, THINK, "<think>\n", turn=("]~b]", "\n", "[e~[\n")), "minimax_m2", "<think>"),
    "DeepSeek-V3.2": (chat(dsml("function_calls"), TIGHT, "<think>"), "deepseek_v32", "<think>"),
    "DeepSeek-V4": (chat(dsml("tool_calls"), TIGHT, "</think>"), "deepseek_v4", "<think>"),
    "DeepSeek-V3": (chat(DEEPSEEK_3.replace("| tojson", "")), "deepseek_v3", ""),
    "DeepSeek-R1": (chat(DEEPSEEK_3.replace("| tojson", ""), "", "<think>\n"), "deepseek_v3", "<think>"),
    "DeepSeek-V3.1": (chat(DEEPSEEK_31, "</think>", "{% if thinking %}<think>{% else %}</think>{% endif %}"),
                      "deepseek_v31", "<think>"),
    "Kimi-K2": (chat(KIMI, TIGHT, result="## Return of {{ m.tool_call_id }}\n"), "kimi_k2", "<think>"),
    "Mistral-v3": (chat("[TOOL_CALLS][" + LIST + "]", turn=MISTRAL_TURN), "mistral", ""),
    "Mistral-v7": (
        chat("[TOOL_CALLS][" + each(CHECK_ID + '{{ c | tojson }}', ", ") + "]", turn=MISTRAL_TURN,
             result="{{ m.tool_call_id }}[TOOL_CONTENT]"), "mistral", ""
    ),
    "Mistral-v11": (
        chat(each(CHECK_ID + "[TOOL_CALLS]{{ c.name }}[CALL_ID]{{ t.id }}[ARGS]{{ c.arguments | tojson }}"),
             turn=MISTRAL_TURN, result="{{ m.tool_call_id }}[TOOL_CONTENT]"), "mistral_args", ""
    ),
    "Ministral-3": (
        chat(each("[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}"), thought("[THINK]", "[/THINK]"),
             turn=MISTRAL_TURN), "mistral_args", "[THINK]"
    ),
    "Llama-3.1": (LLAMA_CHAT, "llama3_json", ""),
    "Llama-3.2-pythonic": (
        chat("[" + PYTHON + "]", turn=LLAMA_TURN, before="in the format of [func_name1(params_name1=...)]"), "pythonic", ""
    ),
    "OLMo-3": (
        chat("<function_calls>" + PYTHON.replace(", {% endif %}{{ c", "\n{% endif %}{{ c") + "</function_calls>",
             "", "<think>"), "olmo3", "<think>"
    ),
    "LFM2": (chat("<|tool_call_start|>[" + PYTHON + "]<|tool_call_end|>"), "lfm2", ""),
    "LFM2.5": (
        chat("<|tool_call_start|>[" + PYTHON + "]<|tool_call_end|>", thought("<think>", "</think>", "thinking")),
        "lfm2", "<think>"
    ),
    "Gemma-4": (
        gemma_chat("<|tool_call>", "<tool_call|>", '<|"|>', thought("<|channel>thought\n", "\n<channel|>"),
                   "{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}"),
        "gemma4", "<|channel>thought\n",
    ),
    "FunctionGemma": (
        gemma_chat("<start_function_call>", "<end_function_call>", "<escape>"), "functiongemma", ""
    ),
    "Phi-4-mini": (PHI, "phi4_mini_json", ""),
    "Apertus": (
        chat(APERTUS, thought("<|inner_prefix|>", "<|inner_suffix|>", "thinking")), "apertus", "<|inner_prefix|>"
    ),
    "Granite-3.3": (
        chat("<|tool_call|>[" + LIST + "]", thought("<think>", "</think>") + "{% if thinking %}<response>{% endif %}"),
        "granite", "<think>"
    ),
    "Granite-4": (chat(HERMES), "hermes", ""),
    "EXAONE-4": (
        chat(each(f"\n<tool_call>{OBJECT}</tool_call>"), THINK, "<think>\n", turn=("[|", "|]\n", "[|endofturn|]\n")),
        "hermes", "<think>"
    ),
    "SmolLM3": (SMOLLM, "hermes", "<think>"),
    "Nemotron-Nano-2": (
        chat("<TOOLCALL>[" + LIST + "]</TOOLCALL>", "", "<think>\n", turn=("<SPECIAL_11>", "\n", "\n<SPECIAL_12>\n")),
        "nemotron_nano_v2", "<think>"
    ),
    "Hunyuan-A13B": (
        chat("<tool_calls>[" + LIST + "]</tool_calls>", THINK.replace("\n\n", "\n<answer>\n")), "hunyuan_a13b", "<think>"
    ),
    "ERNIE-4.5": (
        chat(HERMES, THINK, "<think>\n", before="Answer in <response>\n...\n</response>; <tool_output>"), "ernie45", "<think>"
    ),
    "Cohere": (
        chat(
            "<|START_ACTION|>["
            + each('{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", "parameters": ' + ARGUMENTS + "}", ", ")
            + "]<|END_ACTION|>",
            thought("<|START_THINKING|>", "<|END_THINKING|>"),
        ),
        "cohere", "<|START_THINKING|>"
    ),
    # Another family's marks, quoted by a system's message.
    "Hermes-quoting": (chat(HERMES, before="Never write [TOOL_CALLS] or <|channel|> and <|message|>."), "hermes", ""),
    "spelled-marks": (chat(each("{{ '<tool' + '_call>' }}\n" + OBJECT + "\n{{ '</tool' + '_call>' }}")), "hermes", ""),
}  # fmt: skip
