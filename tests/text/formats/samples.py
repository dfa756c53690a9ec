"""A tokenizer with the markers of all formats, and an answer with calls in each format."""

from tokenizers import AddedToken

from service.text.formats.families import named
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level


def _tokenizer():
    backend = byte_level(600)
    backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>", "<|/tool_call|>"])
    of_deepseek = ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
    backend.add_special_tokens([f"<｜tool▁{name}｜>" for name in of_deepseek])
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return Tokenizer(backend)


TOKENIZER = _tokenizer()
ENDS = frozenset({1})  # <|end|>
FORMATS = [
    named(name)[-1]
    for name in (
        "hermes",
        "llama3_json",
        "mistral",
        "mistral_args",
        "phi4_mini_json",
        "json",
        "qwen3_coder",
        "deepseek_v3",
        "deepseek_v31",
    )
]
HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, _, _, QWEN_CODER, DEEPSEEK_V3, DEEPSEEK_V31 = FORMATS
ARGUMENTS = '{"a": "x\\"}{ <tool_call>", "b": [{"c": "\\\\"}], "d": {}}'
# The same as elements, and those of a call with one argument, as JSON and as an element.
ELEMENTS = """
<parameter=a>
x"}{ <tool_call>
</parameter>
<parameter=b>
[{"c": "\\\\"}]
</parameter>
<parameter=d>
{}
</parameter>"""
ONE_ARGUMENT, ONE_ELEMENT = '{"q": "a"}', "\n<parameter=q>\na\n</parameter>"
TEXT_NAMES = {"f": frozenset({"a", "q"})}
TWO_CALLS = {
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>{"name": "g-1", "arguments": {}}</tool_call>',
    "llama3_json": f'{{"name": "f", "parameters": {ARGUMENTS}}}; {{"name": "g-1", "parameters": {{}}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {ARGUMENTS}}}, {{"name": "g-1", "arguments": {{}}}}]',
    "phi4_mini_json": f'<|tool_call|>[{{"name": "f", "arguments": {ARGUMENTS}}}, {{"name": "g-1", "arguments": {{}}}}]'
    "<|/tool_call|>",
    "mistral_args": f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g-1[ARGS]{{}}",
    "qwen3_coder": f"<tool_call>\n<function=f>{ELEMENTS}\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=g-1>\n</function>\n</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>"
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g-1\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>g-1<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "json": f'{{"name": "f", "arguments": {ARGUMENTS}}}\n{{"name": "g-1", "arguments": {{}}}}',
}


def text_of(token_ids):
    """Return the text of tokens, the names of special ones included."""
    return b"".join(TOKENIZER.token_bytes_of(token_id) for token_id in token_ids).decode(errors="replace")
