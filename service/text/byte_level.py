"""Byte-level BPE from GPT-2's pair of files, which old exports have in place of a tokenizer.json.

Source: transformers `models/gpt2/tokenization_gpt2.py`, `models/whisper/tokenization_whisper.py`.
"""

import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.errors import MalformedCheckpoint
from service.text.json_file import read_json

_CONTROL = re.compile(r"<\|(?![0-9.]+\|>).+\|>")  # Whisper's timestamps are text to a decoder


def merged_tokenizer(folder: Path, uri: str) -> bytes:
    """Return the tokenizer.json that vocab.json, merges.txt and added_tokens.json stand for.

    Raises:
        MalformedCheckpoint: a file does not hold what its name says.
    """
    vocab, added = read_json(folder, "vocab.json", uri), read_json(folder, "added_tokens.json", uri)
    if not all(type(token_id) is int for token_id in (*vocab.values(), *added.values())):
        raise MalformedCheckpoint(uri, "vocab.json", "has tokens whose ids are no integers")
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    except Exception as error:  # the library raises bare Exception
        raise MalformedCheckpoint(uri, "merges.txt", f"is not a list of merges: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    known = {token: token_id for token, token_id in vocab.items() if _CONTROL.fullmatch(token)} | added
    for token in sorted(known, key=known.__getitem__):
        is_control = _CONTROL.fullmatch(token) is not None
        tokenizer.add_tokens([AddedToken(token, special=is_control, normalized=False)])
        if tokenizer.token_to_id(token) != known[token]:
            reason = f"has {token!r} as {known[token]}, which would be {tokenizer.token_to_id(token)} in their order"
            raise MalformedCheckpoint(uri, "added_tokens.json", reason)
    return tokenizer.to_str().encode()
