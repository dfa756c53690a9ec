"""The families of models that are known, each an entry.

Source: their chat templates and model cards at https://huggingface.co, vLLM's names of parsers.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from service.text.formats.codecs import Elements, Literal
from service.text.formats.format import THINK, Calls, Format, Tags

_LISTED = Calls(open="[", between=", ", close="]")
_PYTHON = replace(_LISTED, head="$name(", codec=Literal(), end="")
_TAGGED = Tags("<tool_call>\n", "\n</tool_call>")
_CODER = Calls("<function=$name>\n", Elements(has_lines=True), "\n</function>", _TAGGED, between="\n")
_KIMI = Calls(
    "functions.$name:$n<|tool_call_argument_begin|>",
    end="",
    each=Tags("<|tool_call_begin|>", "<|tool_call_end|>"),
    open="<|tool_calls_section_begin|>",
    close="<|tool_calls_section_end|>",
)
_DEEPSEEK = Calls(
    "$name<｜tool▁sep｜>",
    end="",
    each=Tags("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    open="<｜tool▁calls▁begin｜>",
    close="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_BLOCKS = replace(_DEEPSEEK, head="function<｜tool▁sep｜>$name\n```json\n", end="\n```", between="\n")
_INVOKE = Calls(
    '<invoke name="$name">\n',
    Elements('<parameter name="', '">'),
    "\n</invoke>",
    open="<minimax:tool_call>\n",
    close="\n</minimax:tool_call>",
    between="\n",
)
_DSML = Calls(
    '<｜DSML｜invoke name="$name">\n',
    Elements('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>", says_text=True),
    "\n</｜DSML｜invoke>",
    open="<｜DSML｜function_calls>\n",
    close="\n</｜DSML｜function_calls>",
    between="\n",
)
_LLAMA_JSON = Calls('{"name": "$name", "parameters": ', between="; ", optional="<|python_tag|>")
_LLAMA_BUILT_IN = Calls("$name.call(", Literal(), "", open="<|python_tag|>")
_LLAMA_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>")
_MISTRAL_LIST = Calls(open="[TOOL_CALLS][", between=", ", close="]")
_MISTRAL_ARGS, _MISTRAL_IDS, _MISTRAL_BARE = (
    Calls(head, end="", each=Tags("[TOOL_CALLS]", "")) for head in ("$name[ARGS]", "$name[CALL_ID]$id[ARGS]", "$name")
)
_OF_RESPONSE = (Tags("<response>", "</response>"),)


def _mistral(name: str, calls: tuple[Calls, ...], sign: str) -> Format:
    tags = Tags("[THINK]", "[/THINK]"), THINK
    aliases = () if name == "mistral" else ("mistral",)
    return Format(name, calls, tags, aliases=aliases, reasoning_names=("mistral",), id_form="short", signs=(sign,))


HARMONY = Format(
    "openai",
    (Calls("to=functions.$name", end=""),),
    (),
    aliases=("gpt_oss",),
    reasoning_names=("openai_gptoss",),
    hidden=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    ends=("<|call|>", "<|return|>"),
    goes_on=("<|end|>",),
    allows_several=False,
    has_headers=True,
    signs=(r"<\|channel\|>", r"<\|message\|>"),
)
HERMES = Format(
    "hermes",
    (Calls(each=_TAGGED, between="\n"),),
    aliases=("qwen3_json", "granite4", "longcat"),
    reasoning_names=("qwen3", "deepseek_r1", "deepseek_v3", "exaone4", "olmo3"),
    signs=("<tool_call>",),
)
QWEN_CODER = Format(
    "qwen3_coder",
    (_CODER, replace(_CODER, each=Tags("", ""), open="<function=", head="$name>\n")),
    aliases=("qwen3_xml", "mimo", "step3p5", "nemotron_v3"),
    reasoning_names=("nemotron_v3", "step3p5", "mimo"),
    signs=("<tool_call>", "<function="),
)
SINGLE_LLAMA = Format(
    "llama3_json",
    (_LLAMA_JSON, _LLAMA_BUILT_IN),
    aliases=("llama4_json",),
    ends=_LLAMA_ENDS,
    allows_several=False,
    signs=(r"<\|start_header_id\|>|<\|header_start\|>", '"parameters"', "single tool-calls"),
)
PYTHONIC = Format(
    "pythonic",
    (_PYTHON, replace(_PYTHON, open="<|python_start|>[", close="]<|python_end|>"), _LLAMA_JSON),
    aliases=("llama4_pythonic",),
    ends=_LLAMA_ENDS,
    signs=(r"\[func_name1\(",),
)

UNKNOWN = Format("json", (Calls(between="\n"),), is_taught=False)

# Of several that fit a template, the first.
FAMILIES: tuple[Format, ...] = (
    HARMONY,
    Format(
        "gemma4",
        (Calls("call:$name{", Literal(":", '<|"|>'), "", Tags("<|tool_call>", "<tool_call|>")),),
        (Tags("<|channel>thought\n", "<channel|>"),),
        reasoning_names=("gemma4",),
        hidden=("<|channel>", "<|tool_response>", "<tool_response|>"),
        ends=("<turn|>", "<|tool_response>"),
        signs=(r"<\|tool_call>",),
    ),
    Format(
        "functiongemma",
        (Calls("call:$name{", Literal(":", "<escape>"), "", Tags("<start_function_call>", "<end_function_call>")),),
        (),
        reasoning_names=(),
        hidden=("<start_function_response>",),
        ends=("<end_of_turn>", "<start_function_response>"),
        signs=("<start_function_call>",),
    ),
    Format(
        "kimi_k2",
        (_KIMI, replace(_KIMI, head="$name:$n<|tool_call_argument_begin|>")),
        reasoning_names=("kimi_k2",),
        id_form="functions.$name:$n",
        signs=(r"<\|tool_call_begin\|>",),
    ),
    Format(
        "deepseek_v3",
        (_DEEPSEEK_BLOCKS, _DEEPSEEK),
        reasoning_names=("deepseek_r1",),
        signs=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    Format(
        "deepseek_v31",
        (_DEEPSEEK, _DEEPSEEK_BLOCKS),
        reasoning_names=("deepseek_v3",),
        signs=("<｜tool▁calls▁begin｜>",),
    ),
    Format(
        "deepseek_v32",
        (_DSML, replace(_DSML, open="<｜DSML｜tool_calls>\n", close="\n</｜DSML｜tool_calls>")),
        reasoning_names=("deepseek_v32",),
        signs=("DSML", "function_calls>"),
    ),
    Format(
        "deepseek_v4",
        (replace(_DSML, open="<｜DSML｜tool_calls>\n", close="\n</｜DSML｜tool_calls>"), _DSML),
        reasoning_names=("deepseek_v4",),
        signs=("DSML",),
    ),
    Format("minimax_m2", (_INVOKE,), reasoning_names=("minimax_m2",), ends=("[e~[",), signs=("minimax:tool_call",)),
    Format(
        "seed_oss",
        (
            replace(
                _CODER, codec=Elements(), end="\n</function>", each=Tags("<seed:tool_call>\n", "\n</seed:tool_call>")
            ),
        ),
        (Tags("<seed:think>", "</seed:think>"),),
        reasoning_names=("seed_oss",),
        ends=("<seed:eos>",),
        signs=("seed:tool_call|toolcall_begin_token",),
    ),
    Format(
        "glm45",
        (
            Calls(
                "$name\n", Elements("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"), "", _TAGGED, between="\n"
            ),
        ),
        aliases=("glm47",),
        reasoning_names=("glm45",),
        ends=("<|user|>", "<|observation|>"),
        signs=("<arg_key>",),
    ),
    Format(
        "apertus",
        (Calls('{"$name": ', open="<|tools_prefix|>[", between=", ", close="]<|tools_suffix|>"),),
        (Tags("<|inner_prefix|>", "<|inner_suffix|>"),),
        reasoning_names=("apertus",),
        ends=("<|assistant_end|>",),
        signs=(r"<\|tools_prefix\|>",),
    ),
    Format(
        "lfm2",
        (replace(_PYTHON, open="<|tool_call_start|>[", close="]<|tool_call_end|>"),),
        reasoning_names=("lfm2",),
        signs=(r"<\|tool_call_start\|>|List of tools:",),
    ),
    _mistral("mistral_args", (_MISTRAL_IDS, _MISTRAL_ARGS, _MISTRAL_BARE, _MISTRAL_LIST), r"\[CALL_ID\]"),
    _mistral("mistral_args", (_MISTRAL_ARGS, _MISTRAL_IDS, _MISTRAL_BARE, _MISTRAL_LIST), r"\[ARGS\]"),
    _mistral("mistral", (_MISTRAL_LIST, _MISTRAL_ARGS, _MISTRAL_IDS, _MISTRAL_BARE), r"\[TOOL_CALLS\]"),
    Format(
        "phi4_mini_json",
        (Calls(open="<|tool_call|>[", between=", ", close="]<|/tool_call|>"), replace(_LISTED, open="functools[")),
        signs=(r"<\|/tool\|>",),
    ),
    Format(
        "granite",
        tuple(replace(_LISTED, open=mark) for mark in ("<|tool_call|>[", "<tool_call>[")),
        (THINK, Tags("Here is my thought process:", "Here is my response:")),
        _OF_RESPONSE,
        reasoning_names=("granite",),
        signs=(r"<\|tool_call\|>",),
    ),
    Format(
        "olmo3",
        (Calls("$name(", Literal(), "", open="<function_calls>", close="</function_calls>", between="\n"),),
        reasoning_names=("olmo3",),
        signs=("<function_calls>",),
    ),
    Format(
        "nemotron_nano_v2",
        (replace(_LISTED, open="<TOOLCALL>[", close="]</TOOLCALL>"),),
        reasoning_names=("nemotron_v2",),
        signs=("<TOOLCALL>",),
    ),
    Format(
        "hunyuan_a13b",
        (replace(_LISTED, open="<tool_calls>[", close="]</tool_calls>"),),
        wraps=(Tags("<answer>", "</answer>"),),
        reasoning_names=("hunyuan_a13b",),
        signs=("<tool_calls>",),
    ),
    Format(
        "cohere",
        (
            replace(
                _LISTED,
                head='{"tool_call_id": "$id", "tool_name": "$name", "parameters": ',
                open="<|START_ACTION|>[",
                close="]<|END_ACTION|>",
            ),
        ),
        (Tags("<|START_THINKING|>", "<|END_THINKING|>"),),
        (Tags("<|START_RESPONSE|>", "<|END_RESPONSE|>"),),
        reasoning_names=("cohere_command3",),
        signs=(r"<\|START_ACTION\|>",),
    ),
    Format(
        "ernie45",
        HERMES.calls,
        wraps=_OF_RESPONSE,
        reasoning_names=("ernie45",),
        signs=("<tool_call>", "<tool_output>|<response>"),
    ),
    QWEN_CODER,
    HERMES,
    SINGLE_LLAMA,
    replace(SINGLE_LLAMA, allows_several=True, signs=SINGLE_LLAMA.signs[:2]),
    PYTHONIC,
    UNKNOWN,
)
NO_CALLS = Format("none")
# Where the format of calls says nothing of reasoning.
ALL_TAGS = tuple(
    dict.fromkeys((*(tags for form in FAMILIES for tags in form.thinking), Tags("<thought>", "</thought>")))
)
TOOL_CALL_PARSERS = tuple(sorted({name for form in FAMILIES for name in (form.name, *form.aliases)}))
REASONING_PARSERS = tuple(sorted({name for form in FAMILIES for name in form.reasoning_names}))


def named(name: str) -> list[Format]:
    """Return the formats of calls by a name, the most usual first."""
    return [form for form in FAMILIES if name in (form.name, *form.aliases)]


def of_reasoning(name: str) -> Format:
    """Return the first format whose reasoning has a name."""
    return next(form for form in FAMILIES if name in form.reasoning_names)


def by_signs(template: str, forms: Iterable[Format] = FAMILIES) -> Format:
    """Return the first format whose signs a template has; the last if it has those of none."""
    *others, last = forms
    return next((form for form in others if all(re.search(sign, template) for sign in form.signs)), last)
