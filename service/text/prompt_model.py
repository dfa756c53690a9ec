"""The parts of a model that rendering and tokenizing a prompt need; another process may get them."""

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service.text.images import ImageText
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # a model without a template starts without Jinja
    from service.text.chat_template import ChatTemplate


@dataclass(frozen=True, kw_only=True)
class PromptModel:
    """A model, as far as prompts know it; may be sent to another process."""

    name: str  # for errors
    tokenizer: Tokenizer
    chat_template: "ChatTemplate | None"  # None: it takes no messages
    images: ImageText | None = None  # None: it reads only text
    max_model_len: int  # tokens
    keeps_states: bool = False  # whether it has layers whose states are kept where a prompt says that others go on
    vocab_size: int  # valid token ids are less
    key: str = field(default_factory=lambda: uuid.uuid4().hex)  # by which the other process knows it
