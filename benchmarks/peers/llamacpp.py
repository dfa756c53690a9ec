"""llama.cpp through llama-cpp-python's low-level API: all sequences in one batched decode, greedy, no HTTP.

    python -m benchmarks.peers.llamacpp CHECKPOINT GGUF [SEQUENCES CONTEXT]

The GGUF file is written from the checkpoint if it does not exist; the end of its name says in which type: `-q8_0.gguf`,
`-bf16.gguf`, `-q4_0.gguf` or `-q4_k_m.gguf`, else float32. llama.cpp itself quantizes to 4 bits, with more for some
matrices. Without limits it takes 32 sequences of 512 tokens.
"""

import ctypes
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gguf_export import export_gguf
from benchmarks.peers.worker import Generate, run_worker

LIMITS = (32, 512)  # sequences, and tokens of each
KINDS = {"-q8_0": "Q8_0", "-bf16": "BF16"}
MIXED = {"-q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", "-q4_k_m": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
BATCH_TOKENS = 4096


class BatchedContext:
    """One llama.cpp context for many sequences."""

    def __init__(self, path: str, num_threads: int, max_sequences: int, context_tokens: int) -> None:
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = max_sequences
        params.n_ctx = max_sequences * context_tokens
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def generate(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Continue every prompt by `output_tokens` tokens."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
        self._batch.n_tokens = 0
        rows = []  # of the batch: the last token of each prompt, whose logits are needed
        for sequence, prompt in enumerate(prompts):
            for position, token_id in enumerate(prompt):
                self._add(token_id, position, sequence, is_sampled=position == len(prompt) - 1)
            rows.append(self._batch.n_tokens - 1)
        output = [[token_id] for token_id in self._decode(rows)]
        for _ in range(output_tokens - 1):
            self._batch.n_tokens = 0
            for sequence, (prompt, done) in enumerate(zip(prompts, output, strict=True)):
                self._add(done[-1], len(prompt) + len(done) - 1, sequence, is_sampled=True)
            for done, token_id in zip(output, self._decode(range(len(prompts))), strict=True):
                done.append(token_id)
        return {"token_ids": output}

    def look_up(self, asked: list[list[int]], num_drafts: int) -> dict[str, Any]:
        """Continue a prompt by an imposed text, drafted by llama-cpp-python's prompt lookup.

        Args:
            asked: the prompt and the text.
            num_drafts: the most tokens of a draft; 0 drafts none.
        """
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        prompt, text = asked
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_clear(memory, False)
        draft = LlamaPromptLookupDecoding(num_pred_tokens=num_drafts)
        self._batch.n_tokens = 0
        for position, token_id in enumerate(prompt):
            self._add(token_id, position, 0, is_sampled=position == len(prompt) - 1)
        self._decode([len(prompt) - 1])
        begin_s, num_steps, known = time.perf_counter(), 0, [*prompt, text[0]]
        begin_processor_s = time.process_time()
        while (done := len(known) - len(prompt)) < len(text):
            drafted = [int(token_id) for token_id in draft(np.array(known))][: len(text) - done] if num_drafts else []
            self._batch.n_tokens = 0
            for place, token_id in enumerate([known[-1], *drafted]):
                self._add(token_id, len(known) - 1 + place, 0, is_sampled=True)
            self._decode(range(1 + len(drafted)))
            rest = text[done:]
            accepted = next(
                (n for n, pair in enumerate(zip(drafted, rest, strict=False)) if pair[0] != pair[1]), len(drafted)
            )
            known += rest[: accepted + 1]
            self._lib.llama_memory_seq_rm(memory, 0, len(known) - 1, -1)
            num_steps += 1
        decode_s, processor_s = time.perf_counter() - begin_s, time.process_time() - begin_processor_s
        return {"token_ids": [text], "decode_s": decode_s, "processor_s": processor_s, "steps": num_steps}

    def _add(self, token_id: int, position: int, sequence: int, *, is_sampled: bool) -> None:
        batch, row = self._batch, self._batch.n_tokens
        batch.token[row], batch.pos[row] = token_id, position
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        batch.logits[row] = is_sampled
        batch.n_tokens += 1

    def _decode(self, rows: Any) -> list[int]:
        code = self._lib.llama_decode(self._context, self._batch)
        assert code == 0, f"llama_decode returned {code}"
        logits = (self._lib.llama_get_logits_ith(self._context, row) for row in rows)
        return [int(np.ctypeslib.as_array(row, (self._vocab_size,)).argmax()) for row in logits]


def write_gguf(checkpoint: Path, gguf: Path) -> None:
    """Write a checkpoint in the type that the file's name says."""
    import llama_cpp

    mixed = next((kind for end, kind in MIXED.items() if gguf.stem.endswith(end)), None)
    if mixed is None:
        export_gguf(checkpoint, gguf, next((kind for end, kind in KINDS.items() if gguf.stem.endswith(end)), "F32"))
        return
    wide, partial = gguf.with_suffix(".wide"), gguf.with_suffix(".partial")
    export_gguf(checkpoint, wide, "BF16")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, mixed)
    code = llama_cpp.llama_model_quantize(str(wide).encode(), str(partial).encode(), ctypes.byref(params))
    assert code == 0, f"llama_model_quantize returned {code}"
    wide.unlink()
    partial.rename(gguf)


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the checkpoint given on the command line."""
    import llama_cpp

    checkpoint, gguf = Path(sys.argv[1]), Path(sys.argv[2])
    if not gguf.exists():
        write_gguf(checkpoint, gguf)
    num_threads = len(os.sched_getaffinity(0))
    sequences, context_tokens = map(int, sys.argv[3:]) if len(sys.argv) > 3 else LIMITS
    context = BatchedContext(str(gguf), num_threads, sequences, context_tokens)
    system = llama_cpp.llama_print_system_info().decode().strip()
    return {"generate": context.generate, "look_up": context.look_up}, {
        "llama_cpp_python": llama_cpp.__version__,
        "threads": num_threads,
        "system": system,
    }


if __name__ == "__main__":
    run_worker(load)
