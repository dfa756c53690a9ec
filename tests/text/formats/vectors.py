"""Answers of each family as its template writes them, with the parts that they consist of."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from service.text.formats.families import FAMILIES, Format
from service.text.formats.parts import Arguments, CallStart, Content, Part, Thought

type Calls = Sequence[tuple[str, dict]]


def joined(parts: Sequence[Part]) -> list[Part]:
    """Return parts with neighbours of one kind joined."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and not isinstance(last, CallStart) and type(part) is type(last):
            found[-1] = replace(last, text=last.text + part.text)
        else:
            found.append(part)
    return found


WEATHER = ("get_weather", {"city": "Zürich", "days": 3})
CLOCK = ("clock", {})
HARD = (
    "write",
    {"text": 'a "b" {c} [d] <e>\n日本 🌍\n  f', "number": "5", "flag": True, "sizes": [1, 2.5], "at": {"x": None}},
)
TEXTS = {"get_weather": {"city"}, "clock": set(), "write": {"text", "number"}}


def dumped(value):
    return json.dumps(value, ensure_ascii=False)


def objects(calls: Calls, arguments="arguments", between=", "):
    return between.join(f'{{"name": "{name}", "{arguments}": {dumped(given)}}}' for name, given in calls)


def raw(value):
    return value if isinstance(value, str) else dumped(value)


def hermes(calls, line="\n"):
    return "\n".join(f"<tool_call>{line}{objects([call])}{line}</tool_call>" for call in calls)


def coder(calls, tag="tool_call", line="\n"):
    def element(key, value):
        return f"<parameter={key}>{line}{raw(value)}{line}</parameter>\n"

    return "\n".join(
        f"<{tag}>\n<function={name}>\n{''.join(element(*pair) for pair in given.items())}</function>\n</{tag}>"
        for name, given in calls
    )


def glm(calls, line="\n"):
    def element(key, value):
        return f"<arg_key>{key}</arg_key>{line}<arg_value>{raw(value)}</arg_value>{line}"

    return "\n".join(
        f"<tool_call>{name}{line}{''.join(element(*pair) for pair in given.items())}</tool_call>"
        for name, given in calls
    )


def invokes(calls, before="", section="minimax:tool_call", says=False):
    def element(key, value):
        attribute = f' string="{dumped(isinstance(value, str))}"' if says else ""
        return f'<{before}parameter name="{key}"{attribute}>{raw(value)}</{before}parameter>\n'

    body = "".join(
        f'<{before}invoke name="{name}">\n{"".join(element(*pair) for pair in given.items())}</{before}invoke>\n'
        for name, given in calls
    )
    return f"<{before}{section}>\n{body}</{before}{section}>"


def deepseek(calls, between="", block=False):
    def call(name, given):
        body = (
            f"function<｜tool▁sep｜>{name}\n```json\n{dumped(given)}\n```"
            if block
            else (f"{name}<｜tool▁sep｜>{dumped(given)}")
        )
        return f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"

    return f"<｜tool▁calls▁begin｜>{between.join(call(*pair) for pair in calls)}<｜tool▁calls▁end｜>"


def kimi(calls):
    body = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{dumped(given)}<|tool_call_end|>"
        for i, (name, given) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def python(calls, between=", ", quote="'"):
    def value(given):
        if not isinstance(given, str):
            return repr(given)
        return quote + given.replace("\\", "\\\\").replace(quote, "\\" + quote).replace("\n", "\\n") + quote

    return between.join(
        f"{name}({', '.join(f'{key}={value(given)}' for key, given in arguments.items())})" for name, arguments in calls
    )


def gemma(calls, before="<|tool_call>", behind="<tool_call|>", quote='<|"|>'):
    def value(given):
        match given:
            case str():
                return f"{quote}{given}{quote}"
            case dict():
                return f"{{{','.join(f'{key}:{value(each)}' for key, each in given.items())}}}"
            case list():
                return f"[{','.join(map(value, given))}]"
        return dumped(given)

    return "".join(f"{before}call:{name}{value(given)}{behind}" for name, given in calls)


def apertus(calls):
    body = ", ".join(f'{{"{name}": {dumped(given)}}}' for name, given in calls)
    return f"<|tools_prefix|>[{body}]<|tools_suffix|>"


def mistral(calls, call_id=""):
    return "".join(f"[TOOL_CALLS]{name}{call_id}[ARGS]{dumped(given)}" for name, given in calls)


def cohere(calls):
    body = ", ".join(
        f'{{"tool_call_id": "{i}", "tool_name": "{name}", "parameters": {dumped(given)}}}'
        for i, (name, given) in enumerate(calls)
    )
    return f"<|START_ACTION|>[{body}]<|END_ACTION|>"


@dataclass(frozen=True)
class Family:
    """How one checkpoint's template writes an answer."""

    form: str
    calls: Callable[[Calls], str]
    thinking: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    wrap: tuple[str, str] = ("", "")
    is_bare: bool = False  # whether calls come alone
    behind: str = ""  # what it writes behind calls


NONE = ("", "")
CHECKPOINTS = {
    "Qwen3": Family("hermes", hermes),
    "Qwen2.5": Family("hermes", hermes, NONE, behind="\n"),
    "EXAONE-4": Family("hermes", lambda calls: hermes(calls, "")),
    "SmolLM3": Family("hermes", hermes),
    "Granite-4": Family("hermes", hermes, NONE),
    "Qwen3-Coder": Family("qwen3_coder", coder, NONE),
    "Qwen3.5": Family("qwen3_coder", coder),
    "MiMo": Family("qwen3_coder", lambda calls: coder(calls, line="")),
    "Seed-OSS": Family(
        "seed_oss", lambda calls: coder(calls, "seed:tool_call", ""), ("<seed:think>\n", "\n</seed:think>")
    ),
    "GLM-4.5": Family("glm45", glm, ("\n<think>", "</think>\n")),
    "GLM-4.7": Family("glm45", lambda calls: glm(calls, ""), ("<think>", "</think>")),
    "MiniMax-M2": Family("minimax_m2", invokes),
    "DeepSeek-V3.2": Family(
        "deepseek_v32", lambda calls: invokes(calls, "｜DSML｜", "function_calls", says=True), ("<think>", "</think>")
    ),
    "DeepSeek-V4": Family(
        "deepseek_v4", lambda calls: invokes(calls, "｜DSML｜", "tool_calls", says=True), ("<think>", "</think>")
    ),
    "DeepSeek-V3": Family("deepseek_v3", lambda calls: deepseek(calls, "\n", block=True), NONE),
    "DeepSeek-R1": Family("deepseek_v3", lambda calls: deepseek(calls, "\n", block=True)),
    "DeepSeek-V3.1": Family("deepseek_v31", deepseek, ("<think>", "</think>")),
    "Kimi-K2": Family("kimi_k2", kimi, ("<think>", "</think>")),
    "Mistral-v3": Family("mistral", lambda calls: f"[TOOL_CALLS][{objects(calls)}]", NONE),
    "Mistral-v11": Family("mistral_args", lambda calls: mistral(calls, "[CALL_ID]abcDEF123"), NONE),
    "Ministral-3": Family("mistral_args", mistral, ("[THINK]", "[/THINK]")),
    "Magistral-2506": Family("mistral", lambda calls: f"[TOOL_CALLS][{objects(calls)}]"),
    "Llama-3.1": Family("llama3_json", lambda calls: objects(calls, "parameters", "; "), NONE, is_bare=True),
    "Llama-3.2": Family("pythonic", lambda calls: f"[{python(calls, quote='"')}]", NONE, is_bare=True),
    "Llama-4": Family("pythonic", lambda calls: f"<|python_start|>[{python(calls, quote='"')}]<|python_end|>", NONE),
    "OLMo-3": Family("olmo3", lambda calls: f"<function_calls>{python(calls, '\n', '"')}</function_calls>"),
    "LFM2": Family(
        "lfm2", lambda calls: f"<|tool_call_start|>[{python(calls)}]<|tool_call_end|>", ("<think>", "</think>")
    ),
    "Gemma-4": Family("gemma4", gemma, ("<|channel>thought\n", "\n<channel|>")),
    "FunctionGemma": Family(
        "functiongemma",
        lambda calls: gemma(calls, "<start_function_call>", "<end_function_call>", "<escape>"),
        NONE,
    ),
    "Phi-4-mini": Family("phi4_mini_json", lambda calls: f"<|tool_call|>[{objects(calls)}]<|/tool_call|>", NONE),
    "Phi-4-mini-functools": Family("phi4_mini_json", lambda calls: f"functools[{objects(calls)}]", NONE),
    "Apertus": Family("apertus", apertus, ("<|inner_prefix|>", "<|inner_suffix|>")),
    "Granite-3.3": Family(
        "granite",
        lambda calls: f"<|tool_call|>[{objects(calls)}]",
        ("<think>", "</think>"),
        ("<response>", "</response>"),
    ),
    "Granite-3.2": Family(
        "granite",
        lambda calls: f"<|tool_call|>[{objects(calls)}]",
        ("Here is my thought process:\n", "\n\nHere is my response:\n"),
    ),
    "Granite-3.1": Family("granite", lambda calls: f"<tool_call>[{objects(calls)}]", NONE),
    "Nemotron-Nano-2": Family("nemotron_nano_v2", lambda calls: f"<TOOLCALL>[{objects(calls)}]</TOOLCALL>"),
    "Hunyuan-A13B": Family(
        "hunyuan_a13b",
        lambda calls: f"<tool_calls>[{objects(calls)}]</tool_calls>",
        ("<think>\n", "\n</think>\n"),
        ("<answer>\n", "\n</answer>"),
    ),
    "ERNIE-4.5": Family("ernie45", hermes, wrap=("<response>\n", "\n</response>")),
    "Cohere": Family(
        "cohere",
        cohere,
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
}
FORMS: dict[str, Format] = {}
for form in FAMILIES:
    FORMS.setdefault(form.name, form)


@dataclass(frozen=True)
class Answer:
    """An answer and its parts."""

    checkpoint: str
    name: str
    text: str
    parts: Sequence[Part]
    begins: type[Thought] | None = None  # the region that the prompt ends in
    is_whole: bool = True

    @property
    def form(self) -> Format:
        return FORMS[CHECKPOINTS[self.checkpoint].form]


def parts_of(calls: Calls) -> list[Part]:
    return [
        part
        for index, (name, given) in enumerate(calls)
        for part in (CallStart(index, name), Arguments(index, dumped(given)))
    ]


def answers(checkpoint: str) -> list[Answer]:
    """Return the answers of one checkpoint."""
    family = CHECKPOINTS[checkpoint]
    before, behind = family.thinking
    thought = f"{before}I see <b>.\n\nSo?{behind}"
    content = f"{family.wrap[0]}It is 4 < 5.\nYes{family.wrap[1]}"
    spoken, thinking = Content("It is 4 < 5.\nYes"), Thought("I see <b>.\n\nSo?")

    def made(name, text, *parts, **options):
        return Answer(checkpoint, name, text, parts, **options)

    found = [made("content", content, spoken)]
    for name, calls in {
        "call": [WEATHER],
        "no arguments": [CLOCK],
        "calls": [WEATHER, CLOCK, HARD],
        "hard": [HARD],
    }.items():
        found.append(made(name, family.calls(calls) + family.behind, *parts_of(calls)))
    if not family.is_bare:
        found.append(
            made("content and call", f"Wait.{family.calls([WEATHER])}", Content("Wait."), *parts_of([WEATHER]))
        )
    if before:
        called = family.calls([WEATHER, HARD])
        found += [
            made("reasoning", thought + content, thinking, spoken),
            made("reasoning and calls", thought + called, thinking, *parts_of([WEATHER, HARD])),
            made("prefilled", thought.removeprefix(before) + content, thinking, spoken, begins=Thought),
            made(
                "prefilled and calls",
                thought.removeprefix(before) + called,
                thinking,
                *parts_of([WEATHER, HARD]),
                begins=Thought,
            ),
            made("opened twice", thought + content, thinking, spoken, begins=Thought),
            made("never closed", f"{before}I see", Thought("I see")),
            made("closed twice", f"{thought}{behind}{content}", thinking, spoken),
        ]
        if not family.is_bare:
            found.append(
                made("call in reasoning", f"{before}Hm.\n{called}", Thought("Hm."), *parts_of([WEATHER, HARD]))
            )
    return found


ANSWERS = [answer for checkpoint in CHECKPOINTS for answer in answers(checkpoint)]
