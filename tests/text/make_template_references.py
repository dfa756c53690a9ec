"""Makes references/templates.json: what transformers' apply_chat_template writes of template_cases.py.

Run `python tests/text/make_template_references.py` with transformers 5.24; the tests have neither.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import TokenizersBackend

sys.path.insert(0, str(Path(__file__).parent))
from template_cases import CASES, TEMPLATES, TOKENS


def written(template, case):
    """Return the prompt; None if the template refuses the chat, or does not know what it brings."""
    tokenizer = TokenizersBackend(tokenizer_object=Tokenizer(models.BPE()), chat_template=template, **TOKENS)
    source = json.dumps(template)
    if (case.tools and "tools" not in source) or (case.documents and "documents" not in source):
        return None
    try:
        return tokenizer.apply_chat_template(
            case.messages,
            tools=case.tools,
            documents=case.documents,
            add_generation_prompt=not case.continues,
            continue_final_message=case.continues,
            tokenize=False,
            **case.variables,
        )
    except Exception:
        return None


if __name__ == "__main__":
    path = Path(__file__).parent / "references" / "templates.json"
    found = {name: {case: written(template, CASES[case]) for case in CASES} for name, template in TEMPLATES.items()}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(sum(prompt is not None for prompts in found.values() for prompt in prompts.values()), "prompts")
