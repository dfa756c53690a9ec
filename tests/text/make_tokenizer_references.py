"""Makes references/tokenizers.zip: folders of twenty classes of tokenizers and what transformers' AutoTokenizer does.

Run `python tests/text/make_tokenizer_references.py` with transformers 5.24; the tests have neither.
"""

import hashlib
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import sentencepiece
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AddedToken, AutoTokenizer, TokenizersBackend

sys.path.insert(0, str(Path(__file__).parent))
from tokenizer_strings import SENTENCES, strings

NUM_STORED, NUM_STRINGS = 100, 2000
PATH = Path(__file__).parent / "references" / "tokenizers.zip"
ANGLES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SQUARES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
END = ["<|endoftext|>"]
CHATML = [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]

BYTES = {"model_type": "bpe", "vocab_size": 400, "byte_fallback": True, "normalization_rule_name": "identity",
         "remove_extra_whitespaces": False}  # fmt: skip
UNIGRAM = {"model_type": "unigram", "vocab_size": 200}
FAIRSEQ = UNIGRAM | {"unk_id": 0, "bos_id": 1, "eos_id": 2}
GEMMA = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>",
         "user_defined_symbols": ["<mask>", "<image>"], "add_dummy_prefix": False}  # fmt: skip
SENTENCEPIECE = (
    ("llama", {"add_bos_token": True}, "LlamaTokenizer", BYTES),
    ("llama_legacy", {"legacy": True, "add_eos_token": True}, "LlamaTokenizer", BYTES),
    ("mistral", {"add_bos_token": True}, None, BYTES | {"user_defined_symbols": ["[INST]", "[/INST]"]}),
    ("gemma", {"add_bos_token": True}, "GemmaTokenizer", BYTES | GEMMA),
    ("xlm_roberta", {}, "XLMRobertaTokenizer", FAIRSEQ),
    ("camembert", {}, "CamembertTokenizer", FAIRSEQ | {"normalization_rule_name": "identity"}),
)


def byte_level(special=(), num_tokens=380):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer, special, num_tokens, initial_alphabet=alphabet)


def metaspace(special=("<unk>", "<s>", "</s>")):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    return trained(tokenizer, trainers.BpeTrainer, [*special, *every_byte], 460)


def word_pieces(special=SQUARES):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(tokenizer, trainers.WordPieceTrainer, special, 300)[0]


def unigram(special):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    options = {"unk_token": "<unk>"}
    tokenizer.train_from_iterator(
        SENTENCES * 4,
        trainers.UnigramTrainer(vocab_size=220, special_tokens=list(special), show_progress=False, **options),
    )
    return [tuple(item) for item in json.loads(tokenizer.to_str())["model"]["vocab"]]


def trained(tokenizer, trainer, special, num_tokens, **options):
    special = list(special)
    tokenizer.train_from_iterator(
        SENTENCES * 4, trainer(vocab_size=num_tokens, special_tokens=special, show_progress=False, **options)
    )
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model.get("merges", ())]


def pair(kind, special, **options):
    vocab, merges = byte_level(special)
    return getattr(transformers, kind)(vocab=vocab, merges=merges, **options)


def made():
    vocab, merges = metaspace()
    yield "llama", transformers.LlamaTokenizer(vocab=vocab, merges=merges)
    yield "llama_legacy", transformers.LlamaTokenizer(vocab=vocab, merges=merges, legacy=True)
    yield "llama_bos", transformers.LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True, add_eos_token=True)
    control = [AddedToken("[INST]", special=True), AddedToken("[/INST]", special=True)]
    yield (
        "mistral",
        transformers.LlamaTokenizer(
            vocab=vocab, merges=merges, add_bos_token=True, extra_special_tokens=control, add_prefix_space=False
        ),
    )
    user = [AddedToken("<|user|>", rstrip=True, special=True), AddedToken("<|end|>", rstrip=True, special=True)]
    yield "phi3", transformers.LlamaTokenizer(vocab=vocab, merges=merges, extra_special_tokens=user, pad_token="<unk>")
    vocab, merges = metaspace(("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"))
    yield "gemma", transformers.GemmaTokenizer(vocab=vocab, merges=merges, add_bos_token=True, image_token="<image>")
    yield "qwen2", pair("Qwen2Tokenizer", END, extra_special_tokens=CHATML)
    yield "gpt2", pair("GPT2Tokenizer", END)
    yield "gpt2_space", pair("GPT2Tokenizer", END, add_prefix_space=True, add_bos_token=True)
    yield "gpt_neox", pair("GPTNeoXTokenizer", [*END, "<|padding|>"])
    yield "codegen", pair("CodeGenTokenizer", END)
    yield "whisper", pair("WhisperTokenizer", END, extra_special_tokens=["<|startoftranscript|>", "<|notimestamps|>"])
    yield "cohere", pair("CohereTokenizer", ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>",
                                             "<|END_OF_TURN_TOKEN|>"])  # fmt: skip
    yield "roberta", pair("RobertaTokenizer", ANGLES)
    yield "bart", pair("BartTokenizer", ANGLES)
    yield "deberta", pair("DebertaTokenizer", SQUARES)
    yield "bert", transformers.BertTokenizer(vocab=word_pieces())
    yield "bert_cased", transformers.BertTokenizer(vocab=word_pieces(), do_lower_case=False, strip_accents=False)
    yield "distilbert", transformers.DistilBertTokenizer(vocab=word_pieces())
    yield "electra", transformers.ElectraTokenizer(vocab=word_pieces())
    yield "mpnet", transformers.MPNetTokenizer(vocab=word_pieces(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]))
    yield "nomic", transformers.BertTokenizer(vocab=word_pieces(), model_max_length=8192)
    yield "xlm_roberta", transformers.XLMRobertaTokenizer(vocab=unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    yield (
        "camembert",
        transformers.CamembertTokenizer(
            vocab=unigram(["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>"])
        ),
    )
    yield "albert", transformers.AlbertTokenizer(vocab=unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]))
    yield "t5", transformers.T5Tokenizer(vocab=unigram(["<pad>", "</s>", "<unk>"]), extra_ids=3)
    yield "generic", TokenizersBackend(tokenizer_object=pair("GPT2Tokenizer", END).backend_tokenizer, eos_token=END[0])


def edited(folder):
    """Yield folders as people leave them: older files, own vocabularies, tokens in the configuration alone."""
    config = json.loads((folder / "qwen2" / "tokenizer_config.json").read_text())
    content = json.loads((folder / "qwen2" / "tokenizer.json").read_text())
    chatml = [token for token in content["added_tokens"] if "im_" in token["content"]]
    content["added_tokens"] = [token for token in content["added_tokens"] if token not in chatml]
    decoder = {str(token.pop("id")): token for token in chatml}
    in_config = folder / "tokens_in_config"
    write(in_config, "tokenizer.json", content)
    write(in_config, "tokenizer_config.json", {
        **config, "added_tokens_decoder": decoder, "eos_token": "<|im_end|>", "additional_special_tokens": ["<image>"],
    })  # fmt: skip
    older = folder / "tokens_in_older_files"
    write(older, "tokenizer.json", content)
    write(older, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END[0]})
    write(older, "added_tokens.json", {token["content"]: int(token_id) for token_id, token in decoder.items()})
    write(older, "special_tokens_map.json", {
        "eos_token": {"content": "<|im_end|>", "lstrip": False, "normalized": False, "rstrip": True},
        "additional_special_tokens": ["<|user|>"],
    })  # fmt: skip
    for name in ("roberta", "gpt2_space", "deberta", "codegen", "bert", "bert_cased", "mpnet", "distilbert", "qwen2"):
        model = json.loads((folder / name / "tokenizer.json").read_text())["model"]
        own = folder / f"{name}_own_files"
        shutil.copytree(folder / name, own, ignore=lambda *_: ["tokenizer.json"])
        if "merges" in model:
            write(own, "vocab.json", model["vocab"])
            write(own, "merges.txt", "#version: 0.2\n" + "\n".join(" ".join(merge) for merge in model["merges"]))
        else:
            words = sorted(model["vocab"], key=model["vocab"].__getitem__)
            write(own, "vocab.txt", "\n".join(words) + "\n")
    for name in ("roberta", "bert", "gpt2"):  # as the first releases lie: what is not said is the class's
        bare = folder / f"{name}_bare_files"
        source = folder / f"{name}_own_files" if name != "gpt2" else folder / "gpt2_space_own_files"
        shutil.copytree(source, bare, ignore=lambda *_: ["tokenizer_config.json", "special_tokens_map.json"])
        write(bare, "config.json", {"model_type": name})
    for name, stated in (("llama_prepends", {}), ("llama_prepends_always", {"legacy": True}), ("llama_bytes", {})):
        source = folder / ("qwen2" if name == "llama_bytes" else "llama")
        content = json.loads((source / "tokenizer.json").read_text())
        if name != "llama_bytes":  # as transformers 4 has saved them
            content["pre_tokenizer"] = None
            replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
            steps = [{"type": "Prepend", "prepend": "▁"}, replace]
            content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        write(folder / name, "tokenizer.json", content)
        kind = "PreTrainedTokenizerFast" if name == "llama_bytes" else "LlamaTokenizerFast"
        files = json.loads((source / "tokenizer_config.json").read_text())
        write(folder / name, "tokenizer_config.json", files | {"tokenizer_class": kind} | stated)
    for name, files, kind, options in SENTENCEPIECE:
        target = folder / f"{name}_pieces"
        target.mkdir()
        file = "sentencepiece.bpe.model" if kind in ("XLMRobertaTokenizer", "CamembertTokenizer") else "tokenizer.model"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES * 4), model_writer=(target / file).open("wb"),
            hard_vocab_limit=False, minloglevel=2, **options,
        )  # fmt: skip
        write(target, "tokenizer_config.json", ({} if kind is None else {"tokenizer_class": kind}) | files)
        if kind is None:
            write(target, "config.json", {"model_type": name})
    cased = folder / "bert_cased_in_config"
    write(cased, "tokenizer.json", (folder / "bert" / "tokenizer.json").read_text())
    files = json.loads((folder / "bert_cased" / "tokenizer_config.json").read_text())
    write(cased, "tokenizer_config.json", files)
    split = folder / "split_special"
    write(split, "tokenizer.json", (folder / "qwen2" / "tokenizer.json").read_text())
    write(
        split, "tokenizer_config.json", {**config, "tokenizer_class": "TokenizersBackend", "split_special_tokens": True}
    )


def write(folder, name, content):
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")


def expected(tokenizer):
    """What AutoTokenizer does: the ids of some strings, and digests of all ids and of the texts that they decode to."""
    texts = list(strings(NUM_STRINGS))
    bare = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    whole = [tokenizer.encode(text) for text in texts]
    return {
        "class": type(tokenizer).__name__,
        "bare": bare[:NUM_STORED],
        "whole": whole[:NUM_STORED],
        "ids": digest([bare, whole]),
        "decoded": digest([tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True) for ids in whole]),
        "shown": digest([tokenizer.decode(ids) for ids in bare])
        if not tokenizer.clean_up_tokenization_spaces
        else None,
        "names": tokenizer.special_tokens_map,
        "size": len(tokenizer),
    }


def digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        folder = Path(made_in)
        for name, tokenizer in made():
            tokenizer.save_pretrained(folder / name)
        edited(folder)
        PATH.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(PATH, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.writestr(
                        zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED, 9
                    )
            found = {path.name: expected(AutoTokenizer.from_pretrained(path)) for path in sorted(folder.iterdir())}
            info = zipfile.ZipInfo("expected.json")
            archive.writestr(info, json.dumps(found), zipfile.ZIP_DEFLATED, 9)
    print(len(found), "tokenizers,", PATH.stat().st_size, "bytes")
