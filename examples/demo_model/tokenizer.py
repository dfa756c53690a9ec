"""The tokenizer: a byte-level BPE of 3072 tokens, trained on the corpus.

Because it is byte-level, it round-trips any UTF-8 text, also text that is not in the corpus. Letters, digits and what
lies between them are never in one token, so a word has the same tokens in a sentence and in the JSON of a call. That
makes it easy to copy.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from examples.demo_model.corpus import DOCUMENTS, sample_epoch
from examples.demo_model.lessons.lesson import Conversation

VOCAB_SIZE = 3072
WORD_OR_DIGIT_OR_BETWEEN = r"\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+"
EPOCHS_READ = 8  # epochs; each wording occurs several times

BEGIN = "<|begin|>"
END = "<|end|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (BEGIN, END, TURN_START, TURN_END, PAD)

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


def train_tokenizer(seed: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer and set its chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_OR_DIGIT_OR_BETWEEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(random.Random(seed)), trainer)
    # Encoding adds <|begin|> to plain text. The chat template writes it itself, so encode its output without adding it.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        chat_template=CHAT_TEMPLATE,
    )


def render(conversation: Conversation, tokenizer: PreTrainedTokenizerFast, *, for_answer: bool = False) -> str:
    """Render a conversation as model input; `for_answer` opens an assistant turn at the end."""
    return tokenizer.apply_chat_template(
        list(conversation.messages),
        tools=list(conversation.tools) or None,
        add_generation_prompt=for_answer,
        tokenize=False,
    )


def _texts(rng: random.Random) -> Iterator[str]:
    """Yield the corpus without special tokens, so that the tokenizer does not merge them as text."""
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for _ in range(EPOCHS_READ):
        epoch = sample_epoch(rng)
        for conversation in epoch:
            texts, _ = render_jinja_template(
                conversations=[list(conversation.messages)],
                tools=list(conversation.tools) or None,
                chat_template=CHAT_TEMPLATE,
                bos_token=BEGIN,
            )
            yield from special.split(texts[0])
        yield from DOCUMENTS
