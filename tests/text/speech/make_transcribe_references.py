"""Write what openai-whisper's `transcribe` makes of scripted decodings, for the tests to compare with.

Run it in an environment of its own: `pip install torch==2.13.0 openai-whisper==20250625`, and the tokens from the
service's: `python -m tests.text.speech.small_whisper > /tmp/tokens.json` first, then
`python tests/text/speech/make_transcribe_references.py /tmp/tokens.json`.
"""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import tiktoken
import torch
import whisper.decoding
import whisper.timing
import whisper.transcribe  # the module; the package's attribute is the function
from whisper.tokenizer import Tokenizer
from whisper.utils import compression_ratio

from scripts import (
    LANGUAGES,
    NUM_HEADS,
    NUM_POSITIONS,
    NUM_SCRIPTS,
    WINDOW_FRAMES,
    Script,
    attention_scores,
    script_of,
    token_logits,
)

FILE = Path(__file__).with_name("transcribe_references.json.gz")
NUM_MELS = 1  # of which nothing depends
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class FakeModel:
    """Answers what the script says."""

    def __init__(self, script: Script, tokenizer: Tokenizer) -> None:
        self.script, self.tokenizer = script, tokenizer
        self.device = torch.device("cpu")
        self.dims = SimpleNamespace(n_mels=NUM_MELS, n_audio_ctx=NUM_POSITIONS, n_text_ctx=448, n_text_layer=1)
        self.is_multilingual, self.num_languages = True, len(LANGUAGES)
        self.alignment_heads = torch.ones(1, NUM_HEADS, dtype=torch.bool).to_sparse()
        self.cross_attn = Identity()
        self.decoder = SimpleNamespace(blocks=[SimpleNamespace(cross_attn=self.cross_attn)])
        self.calls: list[dict] = []
        self.num_alignments = 0

    def decode(self, _mel: torch.Tensor, options: whisper.decoding.DecodingOptions) -> whisper.decoding.DecodingResult:
        task = whisper.decoding.DecodingTask.__new__(whisper.decoding.DecodingTask)
        task.tokenizer, task.options, task.n_ctx = self.tokenizer, options, self.dims.n_text_ctx
        task.sot_sequence, task.sample_len = self.tokenizer.sot_sequence, None
        texts, avg_logprob, no_speech_prob = self.script.decodings[len(self.calls) % len(self.script.decodings)]
        ids = token_ids(self.tokenizer, texts)
        self.calls.append({"prompt": list(task._get_initial_tokens()), "temperature": options.temperature})
        text = self.tokenizer.decode(ids).strip()
        return whisper.decoding.DecodingResult(
            audio_features=torch.zeros(1),
            language=self.script.language,
            tokens=ids,
            text=text,
            avg_logprob=avg_logprob,
            no_speech_prob=no_speech_prob,
            temperature=options.temperature,
            compression_ratio=compression_ratio(text),
        )

    def __call__(self, _mel: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        seed = self.script.seed * 1000 + self.num_alignments
        self.num_alignments += 1
        self.cross_attn(torch.from_numpy(attention_scores(seed, tokens.shape[-1])))
        num_ids = max(self.tokenizer.special_tokens.values()) + 1
        return torch.from_numpy(token_logits(seed, tokens.shape[-1], num_ids))[None]


class Identity(torch.nn.Module):
    """Attention whose scores are given."""

    def forward(self, scores: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, scores[None]


def token_ids(tokenizer: Tokenizer, texts: tuple[str | int, ...]) -> list[int]:
    ids: list[int] = []
    for text in texts:
        ids += [tokenizer.timestamp_begin + text] if isinstance(text, int) else tokenizer.encode(text)
    return ids


def transcribed(script: Script, encoding: tiktoken.Encoding) -> dict:
    task = "translate" if script.is_translated else "transcribe"
    tokenizer = Tokenizer(encoding, num_languages=len(LANGUAGES), language=script.language, task=task)
    module = sys.modules["whisper.transcribe"]
    module.get_tokenizer = lambda *_, **__: tokenizer
    module.log_mel_spectrogram = lambda num_frames, *_, **__: torch.zeros(NUM_MELS, num_frames + WINDOW_FRAMES)
    model = FakeModel(script, tokenizer)
    result = module.transcribe(
        model,
        script.num_frames,
        language=script.language,
        task=task,
        temperature=script.temperatures,
        condition_on_previous_text=script.has_previous_text,
        initial_prompt=script.prompt,
        word_timestamps=script.has_words,
        fp16=False,
    )
    return {"calls": model.calls, "segments": result["segments"], "text": result["text"]}


def main(tokens_file: str) -> None:
    """Write the results of all scripts."""
    tokens = json.loads(Path(tokens_file).read_text())
    encoding = tiktoken.Encoding(
        "small",
        pat_str=PATTERN,
        mergeable_ranks={bytes.fromhex(text): token_id for text, token_id in tokens["texts"].items()},
        special_tokens=tokens["special"],
    )
    results = [transcribed(script_of(seed), encoding) for seed in range(NUM_SCRIPTS)]
    content = json.dumps(results, default=float, separators=(",", ":")).encode()
    FILE.write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
