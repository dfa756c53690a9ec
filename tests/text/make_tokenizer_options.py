"""Makes references/tokenizer_options.json: what transformers' AutoTokenizer does where a configuration is changed.

Run `python tests/text/make_tokenizer_options.py` with transformers 5.24; the tests have neither.
"""

import json
import tempfile
import zipfile
from pathlib import Path

from transformers import AutoTokenizer

REFERENCES = Path(__file__).parent / "references"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEXTS = (
    "Très ÉLÉGANT",
    "Hello world, how are you?",
    "  two  spaces",
    "foo<extra>bar <added> baz",
    "<s>hi</s> <|endoftext|>x",
)
ENDED = ("camembert", "t5", "xlm_roberta")  # whose class puts its end behind texts, whatever it is called
NAMES = (
    "albert",
    "bert",
    "camembert",
    "codegen",
    "deberta",
    "gpt2",
    "gpt2_space",
    "gpt_neox",
    "llama",
    "qwen2",
    "roberta",
)
# A file, a key and its value; null removes the key.
CHANGES = (
    (CONFIG, "add_prefix_space", True),
    (CONFIG, "add_prefix_space", False),
    (CONFIG, "add_prefix_space", None),
    (CONFIG, "eos_token", None),
    (CONFIG, "model_specific_special_tokens", {"image_token": "<extra>"}),
    (CONFIG, "extra_special_tokens", ["<extra>"]),
    (CONFIG, "extra_special_tokens", {"image_token": "<extra>"}),
    (MAP, "additional_special_tokens", ["<extra>"]),
    (MAP, "extra_special_tokens", ["<extra>", "<added>"]),
)
OF_ENDS = ((MAP, "eos_token", "<end>"), (CONFIG, "eos_token", "<pad>"))
OF_ALBERT = ((CONFIG, "do_lower_case", False), (CONFIG, "keep_accents", True), (CONFIG, "add_prefix_space", False))


def write(folder: Path, file: str, key: str, value: object) -> None:
    """Change a key of a file, which may not be there yet."""
    path = folder / file
    values = json.loads(path.read_text()) if path.exists() else {}
    values.pop(key, None)
    path.write_text(json.dumps(values if value is None else {**values, key: value}))


def main() -> None:
    """Write what the tokenizer of each changed folder does."""
    found = []
    for name in (*NAMES, "tokens_in_older_files", *ENDED):
        for change in (*CHANGES, *(OF_ALBERT if name == "albert" else OF_ENDS if name in ENDED else ())):
            with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(REFERENCES / "tokenizers.zip") as archive:
                archive.extractall(folder)
                write(Path(folder) / name, *change)
                tokenizer = AutoTokenizer.from_pretrained(Path(folder) / name)
                ids = [[tokenizer.encode(text, add_special_tokens=adds) for text in TEXTS] for adds in (False, True)]
                shown = [tokenizer.decode(bare, skip_special_tokens=True) for bare in ids[0]]
            found.append({"name": name, "change": change, "ids": ids, "shown": shown, "end": tokenizer.eos_token})
    content = json.dumps({"texts": TEXTS, "cases": found})
    (REFERENCES / "tokenizer_options.json").write_text(content + "\n")


if __name__ == "__main__":
    main()
