"""Has releases of transformers save the configurations of `saved_cases`, each in an environment of its own.

    python -m tests.parity.make_saved_configs PYTHON_OF_THE_NEWEST PYTHON_OF_AN_OLDER …

What this writes is committed: of each release the configurations, of the newest the rotations and the defaults too.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from service.models.families.hub_keys import FAMILY_KEYS
from tests.parity.saved_cases import SPELLINGS, family_values

SCRIPT = Path(__file__).with_name("saved_process.py")
REFERENCES = Path(__file__).parent / "references" / "saved_configs.json.gz"
CASES = {**SPELLINGS, **{f"family_{name}": values for name, values in family_values().items()}}
# Their configurations have keys that transformers keeps and does not read.
KEYS_OF_NO_USE = {"llama_layer_types", "mistral_biases"}
MAX_MODEL_LEN = {"family_phi4_mini_long": 48}  # what the operator asks for, of texts longer than the short context
# Keys that transformers takes from a file, or ignores, and that are no fields of its configurations.
_NO_FIELDS = (
    *("clip_qkv", "global_head_dim", "sliding_window_pattern", "global_attn_every_n_layers"),
    "vision_soft_tokens_per_image",
)


def other_defaults(model_type: str, theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the defaults of a family that are not those of transformers, each with theirs."""
    keys, found = FAMILY_KEYS[model_type], {}
    for key, default in keys.defaults.items():
        names = [key, *(other for other, name in keys.aliases.items() if name == key)]
        given = [theirs[name] for name in names if name in theirs]
        # Null is what transformers computes others of; and it nulls a window that is not used.
        is_computed = default is None or (key == "sliding_window" and "use_sliding_window" in theirs)
        is_of_whole = key == "tie_word_embeddings" and not given  # a part has none
        if key not in _NO_FIELDS and not is_computed and not is_of_whole and default not in given:
            found[key] = (default, given)
    return found


def run(python: str, folder: Path, cases: dict[str, dict[str, Any]]) -> str:
    """Have an environment's transformers save and run cases; returns its version."""
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [python, str(SCRIPT), str(folder / "cases.json"), str(folder / "made"), *FAMILY_KEYS]
    subprocess.run(command, check=True, capture_output=True, timeout=1800)
    return (folder / "made" / "version.txt").read_text()


def read(folder: Path, name: str, file: str) -> Any:
    """Return the JSON of a case; None if the case could not be run."""
    path = folder / "made" / name / file
    return json.loads(path.read_text()) if path.exists() and not path.with_name("error.txt").exists() else None


def rounded(rotations: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return rotations with the digits that float32 has."""
    if rotations is None:
        return None
    return {
        kind: {"angles": [float(f"{angle:.8g}") for angle in of["angles"]], "factor": of["factor"]}
        for kind, of in rotations.items()
    }


def main() -> None:
    """Write the configurations of each release."""
    kept: dict[str, Any] = {}
    for number, python in enumerate(sys.argv[1:]):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            version = run(python, folder, CASES)
            saved = {name: read(folder, name, "saved/config.json") for name in CASES}
            kept[version] = {"saved": {name: values for name, values in saved.items() if values is not None}}
            if number == 0:
                rotations = {name: rounded(read(folder, name, "rotations.json")) for name in CASES}
                kept[version]["rotations"] = {name: found for name, found in rotations.items() if found is not None}
            kept[version]["defaults"] = json.loads((folder / "made" / "defaults.json").read_text())
        print(version, len(kept[version]["saved"]))
    REFERENCES.write_bytes(gzip.compress(json.dumps(kept, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
