"""A tokenizer that puts texts in lower case first, as a file of sentence-transformers may ask.

Source: sentence-transformers 6.2 `base/modules/transformer.py` (do_lower_case): tokens that the tokenizer finds in the
raw text, such as `[SEP]`, keep their case.
"""

import tokenizers
from tokenizers.normalizers import Lowercase, Sequence

from service.text.tokenizer import Tokenizer


def lowercased(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer that lowers texts before anything else; other models keep the original."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    own = backend.normalizer
    backend.normalizer = Lowercase() if own is None else Sequence([Lowercase(), own])
    return Tokenizer(
        backend,
        special_tokens=tokenizer.special_tokens,
        eos_ids=tokenizer.eos_ids,
        num_rows=tokenizer.num_rows,
        defaults=tokenizer.defaults,
    )
