"""Options of a class of tokenizers that tokenizer_config.json states, and that count before those of tokenizer.json.

Source: transformers' models/auto/tokenization_auto.py (MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS, and those of
TOKENIZER_MAPPING_NAMES without a class of their own), models/llama/tokenization_llama.py,
models/albert/tokenization_albert.py,
models/bert/tokenization_bert.py, models/gpt2/tokenization_gpt2.py, models/xlm_roberta/tokenization_xlm_roberta.py
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

# Types of models whose tokenizer is what tokenizer.json says, whatever class tokenizer_config.json names.
AS_IN_FILE = frozenset({
    "arctic", "ernie4_5", "flex_olmo", "fuyu", "glm", "glm4", "glm4_moe", "glm4v", "gpt_bigcode", "granite",
    "granitemoe", "granitemoehybrid", "internlm2", "internlm3", "jamba", "llava", "llava_next", "minicpm3",
    "ministral", "ministral3", "mistral", "mistral3", "mixtral", "modernbert", "molmo", "nemotron", "olmo2", "olmo3",
    "olmo_hybrid", "persimmon", "phi3", "phi3_v", "phimoe", "pixtral", "qwen2", "qwen3_5", "smolvlm", "stablelm",
    "vipllava", "voxtral",
})  # fmt: skip
# What the normalizer of BERT calls its options, by their names in tokenizer_config.json.
BERT_OPTIONS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# Classes that put a space before texts as `add_prefix_space` says, and whether they do where it is not there.
# Source: transformers' models/*/tokenization_*.py (each class's `__init__`)
SPACES = {
    **dict.fromkeys(("GPT2", "CodeGen", "Cohere", "Deberta", "GPTNeoX", "Qwen2", "Whisper"), False),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED"), False),
    **dict.fromkeys(("Albert", "XLMRoberta", "Camembert"), True),
}
# Classes that put their begin and end around texts, whatever these are called: templates of one text and of two.
_AROUND = {
    **dict.fromkeys(
        ("XLMRoberta", "Camembert"),
        ("{bos_token} $A {eos_token}", "{bos_token} $A {eos_token} {eos_token} $B {eos_token}"),
    ),
    "T5": ("$A {eos_token}", "$A {eos_token} $B {eos_token}"),
}


class ClassOptions(NamedTuple):
    """What counts before tokenizer.json; nothing of it where the class is another, or states nothing."""

    prepend: str | None = None  # where Llama's class puts a space before texts: `first`, `always`, `never`
    has_space: bool | None = None  # whether the other classes put a space before texts
    bert: tuple[tuple[str, bool], ...] = ()  # options of BERT's normalizer
    around: tuple[str, str] | None = None  # what stands around one text and two, by the names of the special tokens
    albert: tuple[bool, bool] | None = None  # whether ALBERT's puts texts in lower case, and keeps accents

    @classmethod
    def read(cls, files: Mapping[str, Any], config: Mapping[str, Any]) -> "ClassOptions":
        """Return the options of a tokenizer_config.json beside a model's config.json."""
        stated = files.get("tokenizer_class") or config.get("tokenizer_class")
        if not isinstance(stated, str) or config.get("model_type") in AS_IN_FILE:
            return cls()
        name = re.sub(r"Tokenizer(Fast)?$", "", stated)
        if name == "Llama":
            has_space = files.get("add_prefix_space") is not False
            is_legacy = files.get("legacy") is True
            return cls(prepend="never" if not has_space else "always" if is_legacy else "first")
        if name in ("PreTrained", "TokenizersBackend"):
            return cls()
        if name in SPACES:
            stated_space = files.get("add_prefix_space")
            has_space = SPACES[name] if stated_space is None else bool(stated_space)
            lowers, keeps_accents = files.get("do_lower_case") is not False, files.get("keep_accents") is True
            albert = (lowers, keeps_accents) if name == "Albert" else None
            return cls(has_space=has_space, around=_AROUND.get(name), albert=albert)
        if name in _AROUND:
            return cls(around=_AROUND[name])
        options = {inner: files.get(outer) for outer, inner in BERT_OPTIONS.items()}
        return cls(bert=tuple((inner, value) for inner, value in options.items() if isinstance(value, bool)))

    def surround(self, backend: Tokenizer, names: Mapping[str, str]) -> None:
        """Put the begin and the end around texts, of a tokenizer that has both."""
        if self.around is None:
            return
        used = [key for key in ("bos_token", "eos_token") if key in self.around[0]]
        ids = {names[key]: backend.token_to_id(names[key]) for key in used if key in names}
        if len(used) > sum(key in names for key in used) or None in ids.values():
            return
        single, pair = ([part.format(**names) for part in around.split()] for around in self.around)
        backend.post_processor = processors.TemplateProcessing(single, pair, special_tokens=list(ids.items()))

    def apply_to(self, backend: Tokenizer) -> None:
        """Set the options of a tokenizer that has them."""
        if self.bert and isinstance(normalizer := backend.normalizer, normalizers.BertNormalizer):
            for name, value in self.bert:
                setattr(normalizer, name, value)
            backend.normalizer = normalizer
        if self.albert is not None:
            _normalize_as_albert(backend, lowers=self.albert[0], keeps_accents=self.albert[1])
        if self.has_space is not None:
            _put_space(backend, has_space=self.has_space)
        if self.prepend is None or not _is_sentencepiece(backend):
            return
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=self.prepend, split=False)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if self.prepend != "never" else [])])


def _normalize_as_albert(backend: Tokenizer, *, lowers: bool, keeps_accents: bool) -> None:
    """Write texts as ALBERT's class does; what is compiled in the file stays, and comes last."""
    own = backend.normalizer
    parts = own if isinstance(own, normalizers.Sequence) else () if own is None else (own,)
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if keeps_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if lowers else []
    backend.normalizer = normalizers.Sequence(
        [*steps, *(part for part in parts if isinstance(part, normalizers.Precompiled))]
    )


def _put_space(backend: Tokenizer, *, has_space: bool) -> None:
    """Have a tokenizer put a space before texts, or none."""
    splitter = backend.pre_tokenizer
    for part in splitter if isinstance(splitter, pre_tokenizers.Sequence) else (splitter,):
        if isinstance(part, pre_tokenizers.ByteLevel):
            part.add_prefix_space = has_space
        elif isinstance(part, pre_tokenizers.Metaspace):
            part.prepend_scheme = "always" if has_space else "never"
    if splitter is not None:
        backend.pre_tokenizer = splitter
    if isinstance(decoder := backend.decoder, decoders.Metaspace):
        decoder.prepend_scheme = "always" if has_space else "never"
        backend.decoder = decoder


def _is_sentencepiece(backend: Tokenizer) -> bool:
    """Return whether a tokenizer writes spaces as Llama's class does; some name the class and work by bytes."""
    if not isinstance(backend.model, models.BPE):
        return False
    if backend.pre_tokenizer is None:
        return backend.normalizer is not None and '"Prepend"' in backend.normalizer.__getstate__().decode()
    return isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace)
