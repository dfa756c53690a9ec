"""Tokenizers of the two families, small enough to be built in a test."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ["<|begin|>", "<|end|>", "<|turn|>"]
CORPUS = [
    "Hello world, how are you today? I am fine, thank you. The quick brown fox jumps over the lazy dog.",
    "Grüße aus München! Привет, мир. こんにちは世界。 안녕하세요 🌍🌎🌏 👩‍👩‍👧 naïve café STOP stop",
] * 4


def byte_level(num_tokens=420, adds_begin=False):
    """GPT-2's family: bytes as printable characters, merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    if adds_begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
        )
    return tokenizer


def metaspace(words=("▁the", "▁a", "▁", "a", "b", "e", "h", "t", "▁t", "he", "é", "\ufffd", "世")):
    """Llama 2's family: `▁` for a space, and a token for each byte of what is not in the vocabulary."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a")],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def outside_metaspace():
    """A decoder that is known only from outside: its steps are in another order."""
    tokenizer = metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return tokenizer
