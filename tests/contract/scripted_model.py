"""A checkpoint whose answers are written in a script: a Llama whose weights are made by hand, and that a service loads.

An answer is cut into pieces that are tokens of its own, so each of them decides which one follows. The embedding of
such a token has a direction of its own, attention and MLP add nothing to it, and the head maps it to the next token.
A call is cut within a text alone, where no grammar forces other tokens.

A conversation names its script: a user's message that has `(script NAME)` is answered by that script's first step, and
by the next one after each answer that follows. The chat template finds the step, and ends the prompt with its token.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
CONTEXT = 131_072
MODEL = "scripted"
THOUGHT, THOUGHT_ANSWER = "The answer needs a thought.", "I have thought about it."
DEFAULT = "I have no script for this."
BEGIN, TURN, END, PAD = "<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
THINK, THINK_END = "<think>", "</think>"
MAX_TURNS = 9  # answers that count turns, see `count`
_NUM_MERGED = 8192
_PIECE_CHARS = 12
_PEAK = 100.0  # the logit of the token that follows
_HEAD_SIZE = 32
_INTERMEDIATE = 64

TEMPLATE = """
{%- macro text_of(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content -%}
        {%- for part in content -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set scripts = SCRIPTS -%}
{{- bos_token -}}
{%- if tools -%}
    {{- "<|im_start|>system\\nTools, called as <tool_call>:\\n" -}}
    {%- for tool in tools -%}{{- (tool | tojson) + "\\n" -}}{%- endfor -%}
    {{- "<|im_end|>\\n" -}}
{%- endif -%}
{%- set found = namespace(script="", step=0, turn=0, role="") -%}
{%- for message in messages -%}
    {%- set text = text_of(message.content) -%}
    {%- if message.role == "user" and "(script " in text -%}
        {%- set found.script = text.split("(script ")[-1].split(")")[0] -%}
        {%- set found.step = 0 -%}
        {%- set found.turn = found.turn + 1 -%}
    {%- elif message.role == "assistant" and found.role != "assistant" -%}
        {%- set found.step = found.step + 1 -%}
    {%- endif -%}
    {%- set found.role = message.role -%}
    {{- "<|im_start|>" + message.role + "\\n" -}}
    THOUGHTS{{- text -}}
    {%- for call in message.tool_calls or [] -%}
        {%- set arguments = call.function.arguments -%}
        {{- '<tool_call>{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
        {{- (arguments if arguments is string else arguments | tojson) + "}</tool_call>" -}}
    {%- endfor -%}
    {{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
    {%- if found.script == "count" -%}
        {{- "<|script count " + (found.turn | string) + "|>" -}}
THINKING    {%- elif found.script in scripts and (tools or not scripts[found.script].needs_tools) -%}
        {%- set last = scripts[found.script].num_steps - 1 -%}
        {{- "<|script " + found.script + " " + ([found.step, last] | min | string) + "|>" -}}
    {%- else -%}
        {{- "<|script default 0|>" -}}
    {%- endif -%}
{%- endif -%}
"""

THOUGHTS = '{%- if message.reasoning_content -%}{{- "<think>" + message.reasoning_content + "</think>" -}}{%- endif -%}'
THINKING = """
    {%- elif found.script == "think" and (enable_thinking is not defined or enable_thinking) -%}
        {{- "<|script think 1|>" -}}
    {%- elif found.script == "effort" -%}
        {{- "<|script effort " + (reasoning_effort or "none") + "|>" -}}
"""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class Call:
    """A step that calls a tool."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The call as the model writes it."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {arguments}}}\n</tool_call>'

    @property
    def ends(self) -> Sequence[int]:
        """Where a piece may end: within a text, since elsewhere a grammar may force tokens of other scripts."""
        longest = max(_texts_in(self.arguments), key=len, default="")
        written = json.dumps(longest, ensure_ascii=False)
        return [self.text.index(written) + len(written) // 2] if len(longest) > 1 else []


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


Step = Call | str
Script = Sequence[Step]


def write_scripted_model(folder: Path, scripts: Mapping[str, Script], *, thinks: bool = False) -> None:
    """Write a checkpoint that answers by scripts.

    The script `count`, which is there always, says in which turn of the conversation it is asked. A model that thinks
    has two more: `think` thinks before it answers unless `enable_thinking` is false, and `effort` names the
    `reasoning_effort` that its template gets.

    Args:
        folder: for its files.
        scripts: the steps by the script's name; the last step answers whatever follows it.
        thinks: whether the model thinks.
    """
    chain = _Chain()
    for name, script in scripts.items():
        for i, step in enumerate(script):
            chain.add(f"<|script {name} {i}|>", step)
    for turn in range(MAX_TURNS + 1):
        chain.add(f"<|script count {turn}|>", f"This is turn {turn}.")
    chain.add("<|script default 0|>", DEFAULT)
    if thinks:
        chain.add_thinking("<|script think 1|>", THOUGHT, THOUGHT_ANSWER)
        chain.add("<|script think 0|>", THOUGHT_ANSWER)
        for effort in EFFORTS:
            chain.add(f"<|script effort {effort}|>", f"The effort is {effort}.")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = chain.tensors()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    num_tokens, width = tensors["lm_head.weight"].shape
    special = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    files = {
        "config.json": _config(num_tokens, width, chain.end_id),
        "generation_config.json": {"eos_token_id": chain.end_id},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, **special},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text(chain.tokenizer_file())
    (folder / "chat_template.jinja").write_text(_template(scripts, thinks=thinks))


def _template(scripts: Mapping[str, Script], *, thinks: bool) -> str:
    described = {
        name: {"num_steps": len(script), "needs_tools": any(isinstance(step, Call) for step in script)}
        for name, script in (scripts | ({"think": (THOUGHT_ANSWER,)} if thinks else {})).items()
    }
    template = TEMPLATE.replace("SCRIPTS", json.dumps(described).replace("true", "True"))
    template = template.replace("THOUGHTS", THOUGHTS if thinks else "")
    return template.replace("THINKING", THINKING.strip("\n") + "\n" if thinks else "").strip()


class _Chain:
    """The tokens of the answers, and which one follows which."""

    def __init__(self) -> None:
        self._file = json.loads(_tokenizer().to_str())
        self._vocab: dict[str, int] = self._file["model"]["vocab"]
        self._next: dict[int, int] = {}  # id of a token: id of the one that follows
        self._first: dict[str, int] = {}  # id of the first token of a text
        self.end_id = self._vocab[END]

    def add(self, start: str, step: Step) -> None:
        """Have a step follow a token that is made for it, and end."""
        token, text = self._added(start), step if isinstance(step, str) else step.text
        if text in self._first:
            self._next[token] = self._first[text]
            return
        ids = self._cut(text, _ends(text) if isinstance(step, str) else step.ends)
        self._first[text] = ids[0]
        self._link([token, *ids, self.end_id])

    def add_thinking(self, start: str, thought: str, answer: str) -> None:
        """Have a thought and an answer follow a token; the tags are one token each, so there is one thought."""
        opening, closing = (self._added(tag, is_special=False) for tag in (THINK, THINK_END))
        thought_ids, answer_ids = (self._cut(text, _ends(text)) for text in (f"\n{thought}\n", f"\n\n{answer}"))
        self._link([self._added(start), opening, *thought_ids, closing, *answer_ids, self.end_id])

    def _link(self, ids: Sequence[int]) -> None:
        self._next |= dict(pairwise(ids))

    def _cut(self, text: str, ends: Iterable[int]) -> list[int]:
        """Add the pieces of a text to the vocabulary; each is as much longer as it must be to be new."""
        pieces: list[str] = []
        position = 0
        for stated in (*ends, len(text)):
            end = max(stated, position + 1)
            while end < len(text) and self._is_taken(text[position:end], pieces):
                end += 1
            if position == len(text):
                break
            piece, position = text[position:end], end
            while self._is_taken(piece, pieces):  # the end of the text
                assert pieces, f"{text!r} is a word of the vocabulary"
                piece = pieces.pop() + piece
            pieces.append(piece)
        return [self._added(piece, is_special=False) for piece in pieces]

    def _is_taken(self, piece: str, pieces: Sequence[str]) -> bool:
        return piece in self._vocab or piece in pieces

    def _added(self, content: str, *, is_special: bool = True) -> int:
        token_id = self._vocab[content] = len(self._vocab)
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": is_special}
        self._file["added_tokens"].append({"id": token_id, "content": content, **flags})
        return token_id

    def tokenizer_file(self) -> str:
        """Return the content of tokenizer.json."""
        return json.dumps(self._file, ensure_ascii=False)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the weights: every token of an answer has a direction of its own, and the first one is everyone's.

        The logits of the first direction matter where a grammar excludes the token that follows: the answer ends as
        soon as it may, and has nothing in it that somebody could execute.
        """
        directions = {token: 2 + i for i, token in enumerate(self._next)}
        width = -(-(2 + len(directions)) // 64) * 64
        embedding = np.zeros((len(self._vocab), width), np.float32)
        head = np.zeros((len(self._vocab), width), np.float32)
        embedding[:, 0] = 1
        embedding[:, 1] = 1  # of tokens that are in no answer: each token is as long as any other
        for token, direction in directions.items():
            embedding[token, 1] = 0
            embedding[token, direction] = 1
            head[self._next[token], direction] = _PEAK
        for text, logit in {END: 40, '"': 30, "}": 30, "]": 30}.items():
            head[self._vocab[text], 0] = logit
        head /= np.sqrt(width / 2)  # what the norm before it makes of 1
        shapes = {
            "self_attn.q_proj": (_HEAD_SIZE, width),
            "self_attn.k_proj": (_HEAD_SIZE, width),
            "self_attn.v_proj": (_HEAD_SIZE, width),
            "self_attn.o_proj": (width, _HEAD_SIZE),
            "mlp.gate_proj": (_INTERMEDIATE, width),
            "mlp.up_proj": (_INTERMEDIATE, width),
            "mlp.down_proj": (width, _INTERMEDIATE),
        }
        layer = {f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        norms = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
        layer |= {f"{name}.weight": np.ones(width, np.float32) for name in norms}
        return layer | {"model.embed_tokens.weight": embedding, "lm_head.weight": head}


def _ends(text: str) -> Sequence[int]:
    return range(_PIECE_CHARS, len(text), _PIECE_CHARS)


def _config(num_tokens: int, width: int, end_id: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": num_tokens,
        "hidden_size": width,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": end_id,
    }


def _tokenizer() -> Tokenizer:
    """Merges of English and code, so that prompts of coding agents have about as many tokens as with other models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_MERGED,
        special_tokens=[BEGIN, TURN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("service/**/*.py")]
    tokenizer.train([str(path) for path in sorted(sources)], trainer)
    return tokenizer
