"""Names of the Hugging Face Hub as they are written everywhere: org/name."""

import re
from pathlib import Path

# Source: https://huggingface.co/docs/hub/repositories-getting-started (names)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*)?")


def with_scheme(address: str) -> str:
    """Return `hf://org/name` for `org/name` where there is no folder of that name; any other address as it is."""
    text = address.strip()
    if HUB_NAME.fullmatch(text) is None or Path(text).exists():
        return address
    return f"hf://{text}"
