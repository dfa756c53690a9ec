"""The files of encoders that many people use, as they are published, around tiny random weights.

Names and values of the configuration files are those of the repositories; sizes, vocabularies and ids of special tokens
are small. Needs neither jax nor torch: the maker of the references and the tests write the same bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.parity.encoder_cases import tensor

REFERENCES = Path(__file__).parent / "references" / "published_encoders.npz"
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
MARKS = [*"0123456789.,:;?!'-"]
TEXTS = (
    "That is a happy person",
    "the capital of France is Paris, and 2 rivers meet there: why?",
    "naïve Café",
    "a",
    " ".join(["so long a text that most models cut it"] * 20),
)
PAIRS = (("what is a panda?", "the giant panda is a bear"), ("what is a panda?", "hi"), ("a", "A B C 1 2 3."))

# Sizes that take the place of the published ones, by the keys of every family.
SMALL = {
    **dict.fromkeys(("hidden_size", "dim"), 32),
    **dict.fromkeys(("intermediate_size", "hidden_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_window_layers": 2,
    "query_pre_attn_scalar": 8,
}


@dataclass(frozen=True)
class PublishedEncoder:
    """One repository: its files, and how it is asked."""

    name: str
    config: dict[str, Any]
    tokenizer: str  # the name of a function below
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)  # of sentence-transformers
    is_reranker: bool = False
    quick: bool = False  # whether it is tested on every change

    @property
    def prompt_names(self) -> tuple[str | None, ...]:
        """The prompts that are compared: none, and that of queries."""
        prompts = self.files.get("config_sentence_transformers.json", {}).get("prompts", {})
        return (None, "query") if "query" in prompts else (None,)


def write_files(folder: Path, case: PublishedEncoder) -> dict[str, Any]:
    """Write all files but the model's weights, and return the content of `config.json`."""
    backend, ids = TOKENIZERS[case.tokenizer]()
    small = {key: value for key, value in SMALL.items() if key in case.config}
    sizes = {key: ids[key] for key in ids if key in case.config} | {"vocab_size": backend.get_vocab_size()}
    config = {**case.config, **small, **sizes}
    if "layer_types" in config:
        config["num_hidden_layers"] = len(config["layer_types"])
    contents = {"config.json": config, "tokenizer_config.json": case.tokenizer_config, **case.files}
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    backend.save(str(folder / "tokenizer.json"))
    return config


def dense_tensors(case: PublishedEncoder) -> dict[str, dict[str, np.ndarray]]:
    """Return the tensors of the dense modules, by the folders."""
    found = {}
    for path, config in ((name.rpartition("/")[0], content) for name, content in case.files.items()):
        if path and "in_features" in config:
            shape = config["out_features"], config["in_features"]
            names = {"linear.weight": shape} | ({"linear.bias": shape[:1]} if config["bias"] else {})
            found[path] = {name: tensor(f"{path}/{name}", size) for name, size in names.items()}
    return found


def wordpiece(*, lower: bool = True) -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """BERT's."""
    capitals = [] if lower else [letter.upper() for letter in LETTERS]
    characters = [*LETTERS, *capitals]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *MARKS, *characters, *(f"##{c}" for c in characters), "##0"]
    vocab = {word: index for index, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(words[:5])
    made.post_processor = processors.TemplateProcessing(
        "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return made, {"pad_token_id": 0}


def cased() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    return wordpiece(lower=False)


def mpnet() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """BERT's, with RoBERTa's special tokens."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
    words = [*specials, *MARKS, *LETTERS, *(f"##{c}" for c in LETTERS), "##0"]
    made = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(specials)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return made, {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def roberta() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """Byte-level BPE, with RoBERTa's special tokens."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocab = {word: index for index, word in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    made = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(specials)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return made, {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def unigram(
    *, pad_token_id: int = 1, specials: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>")
) -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """XLM-RoBERTa's."""
    capitals = [letter.upper() for letter in LETTERS]
    pieces = ["▁", *LETTERS, *capitals, *MARKS, "é", "ï", "▁the", "▁a", "▁is", "person"]
    vocab = [
        *((token, 0.0) for token in specials),
        *((piece, -1.0 - len(piece) / 8) for piece in pieces),
        ("<mask>", 0.0),
    ]
    made = tokenizers.Tokenizer(models.Unigram(vocab, specials.index("<unk>"), byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
        ]
    )
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    made.add_special_tokens([*specials, "<mask>"])
    begin, end = (specials.index(token) for token in ("<s>", "</s>"))
    made.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", begin), ("</s>", end)]
    )
    return made, {"pad_token_id": pad_token_id, "bos_token_id": begin, "eos_token_id": end}


def unigram_of_bert() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """XLM-RoBERTa's beside a model of BERT, whose configuration keeps BERT's id for padding."""
    return unigram(pad_token_id=0)


def camembert() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """The same, of which other ids begin and end a text."""
    specials = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>")
    return unigram(specials=specials)


def qwen() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """Byte-level BPE, whose post-processor ends a text."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made = tokenizers.Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(words[-3:])
    made.post_processor = processors.TemplateProcessing(
        "$A <|endoftext|>", "$A $B <|endoftext|>", [("<|endoftext|>", 256)]
    )
    return made, {"pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 256}


def mistral() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """BPE with bytes; the configuration of the tokenizer, and not its post-processor, ends a text."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS, *MARKS]
    vocab = {word: index for index, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(words[:3])
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    return made, {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}


def gemma() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """BPE with bytes that begins and ends a text."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS, *MARKS]
    vocab = {word: index for index, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(words[:4])
    made.post_processor = processors.TemplateProcessing(
        "<bos> $A <eos>", "<bos> $A <eos> <bos>:1 $B:1 <eos>:1", [("<bos>", 2), ("<eos>", 1)]
    )
    return made, {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}


def modernbert() -> tuple[tokenizers.Tokenizer, Mapping[str, int]]:
    """Byte-level BPE with BERT's special tokens."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    made = tokenizers.Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(words[-5:])
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 257), ("[SEP]", 258)]
    )
    names = ("cls_token_id", "bos_token_id", "sep_token_id", "eos_token_id", "pad_token_id")
    return made, dict(zip(names, (257, 257, 258, 258, 259), strict=True))


TOKENIZERS = {
    function.__name__: function
    for function in (
        wordpiece,
        cased,
        mpnet,
        roberta,
        unigram,
        unigram_of_bert,
        camembert,
        qwen,
        mistral,
        gemma,
        modernbert,
    )
}

BERT = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.8.2",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
OF_BERT = {
    "do_lower_case": True,
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "tokenize_chinese_chars": True,
    "strip_accents": None,
    "model_max_length": 512,
    "tokenizer_class": "BertTokenizer",
}
ROBERTA = BERT | {
    "architectures": ["RobertaModel"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
OF_ROBERTA = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_prefix_space": False,
    "errors": "replace",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "model_max_length": 512,
    "special_tokens_map_file": None,
    "trim_offsets": True,
    "tokenizer_class": "RobertaTokenizer",
}
XLM = ROBERTA | {
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "output_past": True,
    "vocab_size": 250002,
}
OF_XLM = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "model_max_length": 512,
    "tokenizer_class": "XLMRobertaTokenizer",
}
MPNET = {
    "architectures": ["MPNetModel"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "mpnet",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
    "transformers_version": "4.8.2",
    "vocab_size": 30527,
}
OF_MPNET = OF_BERT | {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "tokenizer_class": "MPNetTokenizer",
}
DISTILBERT = {
    "activation": "gelu",
    "architectures": ["DistilBertModel"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "vocab_size": 30522,
}
MODERNBERT = {
    "architectures": ["ModernBertModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "reference_compile": False,
    "sep_token_id": 50282,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0",
    "vocab_size": 50368,
}
OF_MODERNBERT = {
    "clean_up_tokenization_spaces": True,
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "model_input_names": ["input_ids", "attention_mask"],
    "model_max_length": 8192,
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "[UNK]",
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoModel": "modeling_qwen.Qwen2Model",
        "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
        "AutoModelForSequenceClassification": "modeling_qwen.Qwen2ForSequenceClassification",
    },
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 8960,
    "is_causal": False,
    "max_position_embeddings": 131072,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.41.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151646,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.3",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151669,
}
OF_QWEN = {
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "errors": "replace",
    "model_max_length": 131072,
    "pad_token": "<|endoftext|>",
    "split_special_tokens": False,
    "tokenizer_class": "Qwen2Tokenizer",
    "unk_token": None,
}
MISTRAL = {
    "architectures": ["MistralModel"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.34.0",
    "use_cache": False,
    "vocab_size": 32000,
}
OF_MISTRAL = {
    "add_bos_token": True,
    "add_eos_token": True,
    "additional_special_tokens": [],
    "bos_token": "<s>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "</s>",
    "legacy": True,
    "model_max_length": 4096,
    "pad_token": "</s>",
    "padding_side": "left",
    "sp_model_kwargs": {},
    "spaces_between_special_tokens": False,
    "tokenizer_class": "LlamaTokenizer",
    "unk_token": "<unk>",
    "use_default_system_prompt": False,
}
GEMMA = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3TextModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "dtype": "float32",
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "max_position_embeddings": 2048,
    "model_type": "gemma3_text",
    "num_attention_heads": 3,
    "num_hidden_layers": 24,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "transformers_version": "4.57.0.dev0",
    "use_bidirectional_attention": True,
    "use_cache": True,
    "vocab_size": 262144,
}
OF_GEMMA = {
    "add_bos_token": True,
    "add_eos_token": True,
    "bos_token": "<bos>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<eos>",
    "model_max_length": 2048,
    "pad_token": "<pad>",
    "padding_side": "right",
    "spaces_between_special_tokens": False,
    "tokenizer_class": "GemmaTokenizer",
    "unk_token": "<unk>",
}
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"


def sentence_files(
    pooling: str,
    *later: str,
    num_modes: int = 4,
    length: Mapping[str, Any] | None = None,
    file: str = "bert",
    prompts: Mapping[str, str] | None = None,
    dense: tuple[int, int, str, bool] = (32, 32, TANH, True),
    **of_pooling: Any,
) -> dict[str, Any]:
    """Return the files of sentence-transformers: modules, the pooling, the length, and the prompts if there are any."""
    kinds = ("Transformer", "Pooling", *later)
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in MODES[:num_modes]}
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 32, **modes, **of_pooling},
    }
    if length is not None:
        files[f"sentence_{file}_config.json"] = dict(length)
    for path, kind in zip(paths, kinds, strict=True):
        if kind == "Dense":
            names = ("in_features", "out_features", "activation_function", "bias")
            files[f"{path}/config.json"] = dict(zip(names, dense, strict=True))
    if prompts is not None:
        version = {"sentence_transformers": "2.7.0", "transformers": "4.39.3", "pytorch": "2.1.0+cu121"}
        files["config_sentence_transformers.json"] = {
            "__version__": version,
            "prompts": dict(prompts),
            "default_prompt_name": None,
        }
    return files


def up_to(tokens: int | None, *, lower: bool = False) -> dict[str, Any]:
    return {"max_seq_length": tokens, "do_lower_case": lower}


NORM = "Normalize"
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
RETRIEVE = "Represent this sentence for searching relevant passages: "
INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "Clustering": "task: clustering | query: ",
}

SAVED_BY_6 = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    ],
    "sentence_bert_config.json": {
        "transformer_task": "sequence-classification",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "scores",
    },
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "6.2.0", "transformers": "5.24.0", "pytorch": "2.13.0"},
        "activation_fn": IDENTITY,
        "default_prompt_name": None,
        "model_type": "CrossEncoder",
        "prompts": {},
    },
}

PUBLISHED_ENCODERS = (
    PublishedEncoder(
        "all-MiniLM-L6-v2", BERT, "wordpiece", OF_BERT, sentence_files("mean_tokens", NORM, length=up_to(256))
    ),
    PublishedEncoder(
        "all-MiniLM-L12-v2", BERT, "wordpiece", OF_BERT, sentence_files("mean_tokens", NORM, length=up_to(128))
    ),
    PublishedEncoder(
        "all-mpnet-base-v2",
        MPNET,
        "mpnet",
        OF_MPNET,
        sentence_files("mean_tokens", NORM, length=up_to(384)),
    ),
    PublishedEncoder(
        "multi-qa-mpnet-base-dot-v1", MPNET, "mpnet", OF_MPNET, sentence_files("cls_token", length=up_to(512))
    ),
    PublishedEncoder(
        "multi-qa-MiniLM-L6-cos-v1", BERT, "wordpiece", OF_BERT, sentence_files("mean_tokens", NORM, length=up_to(512))
    ),
    PublishedEncoder(
        "paraphrase-MiniLM-L6-v2", BERT, "wordpiece", OF_BERT, sentence_files("mean_tokens", length=up_to(128))
    ),
    PublishedEncoder(
        "paraphrase-multilingual-MiniLM-L12-v2",
        BERT | {"vocab_size": 250037},
        "unigram_of_bert",
        OF_XLM | {"tokenizer_class": "XLMRobertaTokenizer"},
        sentence_files("mean_tokens", length=up_to(128)),
    ),
    PublishedEncoder(
        "paraphrase-multilingual-mpnet-base-v2",
        XLM,
        "unigram",
        OF_XLM,
        sentence_files("mean_tokens", length=up_to(128)),
    ),
    PublishedEncoder(
        "all-distilroberta-v1", ROBERTA, "roberta", OF_ROBERTA, sentence_files("mean_tokens", NORM, length=up_to(512))
    ),
    PublishedEncoder(
        "msmarco-distilbert-base-tas-b",
        DISTILBERT,
        "wordpiece",
        OF_BERT | {"tokenizer_class": "DistilBertTokenizer"},
        sentence_files("cls_token", length=up_to(512)),
    ),
    PublishedEncoder(
        "distiluse-base-multilingual-cased-v2",
        DISTILBERT | {"output_hidden_states": True, "vocab_size": 119547},
        "cased",
        OF_BERT | {"do_lower_case": False, "tokenizer_class": "DistilBertTokenizer"},
        sentence_files("mean_tokens", "Dense", length=up_to(128), dense=(32, 16, TANH, True)),
        quick=True,
    ),
    PublishedEncoder(
        "LaBSE",
        BERT
        | {
            "directionality": "bidi",
            "pooler_fc_size": 768,
            "pooler_type": "first_token_transform",
            "vocab_size": 501153,
        },
        "cased",
        OF_BERT | {"do_lower_case": False},
        sentence_files("cls_token", "Dense", NORM, length=up_to(256)),
    ),
    PublishedEncoder(
        "S-PubMedBert-MS-MARCO", BERT, "wordpiece", OF_BERT, sentence_files("mean_tokens", length=up_to(350))
    ),
    PublishedEncoder(
        "bge-small-en-v1.5",
        BERT | {"id2label": {"0": "LABEL_0"}, "torch_dtype": "float32"},
        "wordpiece",
        OF_BERT,
        sentence_files("cls_token", NORM, length=up_to(512, lower=True)),
    ),
    PublishedEncoder(
        "bge-large-zh-v1.5",
        BERT | {"vocab_size": 21128, "directionality": "bidi", "id2label": {"0": "LABEL_0"}},
        "wordpiece",
        OF_BERT | {"model_max_length": 1000000000000000019884624838656},
        sentence_files("cls_token", NORM, length=up_to(512, lower=True)),
    ),
    PublishedEncoder(
        "bge-m3",
        XLM | {"max_position_embeddings": 8194, "torch_dtype": "float32"},
        "unigram",
        OF_XLM | {"model_max_length": 8192},
        sentence_files("cls_token", NORM, length=up_to(8192)),
    ),
    PublishedEncoder(
        "multilingual-e5-large",
        XLM,
        "unigram",
        OF_XLM,
        sentence_files("mean_tokens", NORM, length=up_to(512), file="xlm-roberta"),
    ),
    PublishedEncoder(
        "multilingual-e5-small",
        BERT | {"vocab_size": 250037, "tokenizer_class": "XLMRobertaTokenizer"},
        "unigram_of_bert",
        OF_XLM,
        sentence_files("mean_tokens", NORM, length=up_to(512)),
    ),
    PublishedEncoder(
        "multilingual-e5-large-instruct",
        XLM | {"torch_dtype": "float16"},
        "unigram",
        OF_XLM,
        sentence_files("mean_tokens", NORM, length=up_to(512), file="xlm-roberta", prompts={}),
    ),
    PublishedEncoder("e5-base-v2", BERT, "wordpiece", OF_BERT, sentence_files("mean_tokens", NORM, length=up_to(512))),
    PublishedEncoder(
        "mxbai-embed-large-v1",
        BERT | {"torch_dtype": "float16", "use_cache": False},
        "wordpiece",
        OF_BERT,
        sentence_files(
            "cls_token", length=up_to(512), num_modes=6, prompts={"query": RETRIEVE, "passage": ""}, include_prompt=True
        ),
    ),
    PublishedEncoder(
        "gte-small",
        BERT | {"torch_dtype": "float16"},
        "wordpiece",
        OF_BERT,
        sentence_files("mean_tokens", NORM, length=up_to(512)),
    ),
    PublishedEncoder(
        "snowflake-arctic-embed-m",
        BERT,
        "wordpiece",
        OF_BERT,
        sentence_files(
            "cls_token", NORM, length=up_to(512), num_modes=6, prompts={"query": RETRIEVE}, include_prompt=True
        ),
    ),
    PublishedEncoder(
        "sentence-camembert-base",
        ROBERTA
        | {
            "architectures": ["CamembertModel"],
            "model_type": "camembert",
            "bos_token_id": 5,
            "eos_token_id": 6,
            "vocab_size": 32005,
        },
        "camembert",
        OF_XLM | {"tokenizer_class": "CamembertTokenizer", "additional_special_tokens": ["<s>NOTUSED", "</s>NOTUSED"]},
        sentence_files("mean_tokens", length=up_to(128)),
    ),
    PublishedEncoder(
        "text2vec-base-chinese",
        BERT | {"directionality": "bidi", "vocab_size": 21128},
        "wordpiece",
        OF_BERT,
        sentence_files("mean_tokens", length=up_to(128)),
    ),
    PublishedEncoder(
        "granite-embedding-125m-english",
        ROBERTA,
        "roberta",
        OF_ROBERTA,
        sentence_files("cls_token", NORM, length=up_to(512), num_modes=6, include_prompt=True),
    ),
    PublishedEncoder(
        "gte-modernbert-base",
        MODERNBERT,
        "modernbert",
        OF_MODERNBERT,
        sentence_files("cls_token", length=up_to(8192), num_modes=6, include_prompt=True),
    ),
    PublishedEncoder(
        "modernbert-embed-base",
        MODERNBERT,
        "modernbert",
        OF_MODERNBERT,
        sentence_files(
            "mean_tokens",
            NORM,
            length=up_to(8192),
            num_modes=6,
            prompts={"query": "search_query: ", "document": "search_document: "},
            include_prompt=True,
        ),
    ),
    PublishedEncoder(
        "embeddinggemma-300m",
        GEMMA,
        "gemma",
        OF_GEMMA,
        sentence_files(
            "mean_tokens",
            "Dense",
            "Dense",
            NORM,
            length=up_to(2048),
            num_modes=6,
            prompts=GEMMA_PROMPTS,
            include_prompt=True,
            dense=(32, 32, IDENTITY, False),
        ),
    ),
    PublishedEncoder(
        "Qwen3-Embedding-0.6B",
        QWEN3,
        "qwen",
        OF_QWEN,
        sentence_files(
            "lasttoken", NORM, num_modes=6, prompts={"query": INSTRUCT, "document": ""}, include_prompt=True
        ),
    ),
    PublishedEncoder(
        "gte-Qwen2-1.5B-instruct",
        QWEN2,
        "qwen",
        OF_QWEN | {"model_max_length": 32768, "eos_token": "<|endoftext|>"},
        sentence_files(
            "lasttoken", NORM, length=up_to(8192), num_modes=6, prompts={"query": INSTRUCT}, include_prompt=True
        ),
    ),
    PublishedEncoder(
        "e5-mistral-7b-instruct",
        MISTRAL,
        "mistral",
        OF_MISTRAL,
        sentence_files(
            "lasttoken", NORM, length=up_to(4096), num_modes=6, prompts={"query": INSTRUCT}, include_prompt=True
        ),
    ),
    PublishedEncoder(
        "ms-marco-MiniLM-L6-v2",
        BERT
        | ONE_LABEL
        | {"architectures": ["BertForSequenceClassification"], "sbert_ce_default_activation_function": IDENTITY},
        "wordpiece",
        OF_BERT,
        is_reranker=True,
    ),
    PublishedEncoder(
        "ms-marco-MiniLM-L6-v2-saved-by-4",
        BERT
        | ONE_LABEL
        | {
            "architectures": ["BertForSequenceClassification"],
            "sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"},
        },
        "wordpiece",
        OF_BERT,
        is_reranker=True,
    ),
    PublishedEncoder(
        "ms-marco-MiniLM-L6-v2-saved-by-6",
        BERT | ONE_LABEL | {"architectures": ["BertForSequenceClassification"]},
        "wordpiece",
        OF_BERT,
        SAVED_BY_6,
        is_reranker=True,
    ),
    PublishedEncoder(
        "stsb-roberta-base",
        ROBERTA | ONE_LABEL | {"architectures": ["RobertaForSequenceClassification"]},
        "roberta",
        OF_ROBERTA,
        is_reranker=True,
    ),
    PublishedEncoder(
        "bge-reranker-base",
        XLM | ONE_LABEL | {"architectures": ["XLMRobertaForSequenceClassification"]},
        "unigram",
        OF_XLM,
        is_reranker=True,
    ),
    PublishedEncoder(
        "bge-reranker-v2-m3",
        XLM | ONE_LABEL | {"architectures": ["XLMRobertaForSequenceClassification"], "max_position_embeddings": 8194},
        "unigram",
        OF_XLM | {"model_max_length": 8192},
        is_reranker=True,
    ),
    PublishedEncoder(
        "gte-reranker-modernbert-base",
        MODERNBERT | ONE_LABEL | {"architectures": ["ModernBertForSequenceClassification"]},
        "modernbert",
        OF_MODERNBERT,
        is_reranker=True,
    ),
)
