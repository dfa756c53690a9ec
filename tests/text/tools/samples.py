"""A tokenizer with the markers of all formats, and an answer with calls in each format."""

from tokenizers import AddedToken

from service.text.tokenizer import Tokenizer
from service.text.tools import hermes, llama3_json, mistral, plain_json
from tests.text.small_tokenizers import byte_level


def _tokenizer():
    backend = byte_level(600)
    backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"])
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return Tokenizer(backend)


TOKENIZER = _tokenizer()
ENDS = frozenset({1})  # <|end|>
FORMATS = [hermes.FORMAT, llama3_json.FORMAT, mistral.LIST_FORMAT, mistral.ARGS_FORMAT, plain_json.FORMAT]
ARGUMENTS = '{"a": "x\\"}{ <tool_call>", "b": [{"c": "\\\\"}], "d": {}}'
TWO_CALLS = {
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>{"name": "g-1", "arguments": {}}</tool_call>',
    "llama3_json": f'{{"name": "f", "parameters": {ARGUMENTS}}}; {{"name": "g-1", "parameters": {{}}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {ARGUMENTS}}}, {{"name": "g-1", "arguments": {{}}}}]',
    "mistral_args": f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g-1[ARGS]{{}}",
    "json": f'{{"name": "f", "arguments": {ARGUMENTS}}}\n{{"name": "g-1", "arguments": {{}}}}',
}


def text_of(token_ids):
    """Return the text of tokens, the names of special ones included."""
    return b"".join(TOKENIZER.token_bytes_of(token_id) for token_id in token_ids).decode(errors="replace")
