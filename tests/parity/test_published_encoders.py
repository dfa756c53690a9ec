"""The files of much used encoders, as they are published: vectors equal those of sentence-transformers, from texts."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.api.schema.embeddings import EmbeddingsRequest
from service.api.served import VectorFacts
from service.api.vectors.texts import text_ids
from service.checkpoint.discover import locate
from service.models.encoders.registry import any_encoder_weight_specs, is_encoder, read_encoder_config
from service.models.encoders.sentence import read_sentence_config
from service.models.weight_spec import FLOAT32
from service.storage.source import open_source
from service.text.load import load_tokenizer
from service.text.lowercase import lowercased
from service.text.pairs import PairLimits, encode_pairs
from service.text.prompt_model import PromptModel
from tests.encoder.running import Tiny, tiny_of
from tests.parity.encoder_cases import tensor
from tests.parity.published_encoders import (
    PAIRS,
    PUBLISHED_ENCODERS,
    REFERENCES,
    TEXTS,
    PublishedEncoder,
    dense_tensors,
    write_files,
)
from tests.tolerances import SAME_MODEL_ATOL

LEAST_COSINE = 0.9999
# The longest text has fewer tokens in every vocabulary, and longer steps take long to compile.
ENOUGH_TOKENS = 1024


def running(folder: Path, case: PublishedEncoder) -> Tiny:
    """Write the checkpoint and return its model, in float32."""
    config = write_files(folder, case)
    read = read_encoder_config("test", config, case.files)
    assert is_encoder(config, case.files)
    sources = [source for spec in any_encoder_weight_specs(read, FLOAT32) for source in spec.sources]
    names = {source.name: source.shape for source in sources if not source.name.startswith(("2_", "3_"))}
    save_file({name: tensor(name, shape) for name, shape in names.items()}, folder / "model.safetensors")
    for path, tensors in dense_tensors(case).items():
        save_file(tensors, folder / path / "model.safetensors")
    longest = min(read.context_len, ENOUGH_TOKENS)
    limit = read_sentence_config("test", locate(str(folder), open_here(folder)).sentence_files).max_tokens
    return tiny_of(folder, dtype="float32", max_prefill_tokens=16, max_model_len=min(longest, limit or ENOUGH_TOKENS))


def open_here(folder: Path):
    return lambda location: open_source(location, cache_root=folder)


def vectors(folder: Path, case: PublishedEncoder, model: Tiny) -> np.ndarray:
    """Return the vectors of the texts, without a prompt and then with one."""
    tokenizer, sentence = load_tokenizer(folder), model.spec.sentence
    tokenizer = lowercased(tokenizer) if sentence.lowers else tokenizer
    prompt_model = PromptModel(
        name="model",
        tokenizer=tokenizer,
        chat_template=None,
        max_model_len=model.spec.shapes.max_model_len,
        vocab_size=model.spec.config.vocab_size,
    )
    facts = VectorFacts(
        size=model.spec.config.vector_size,
        is_normalized=True,
        matryoshka_sizes=None,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
    )
    rows = []
    for prompt in case.prompt_names:
        fields = {"model": "model", "input": list(TEXTS), "truncate_prompt_tokens": -1, "prompt_name": prompt}
        ids = text_ids(EmbeddingsRequest.model_validate(fields), prompt_model, vectors=facts)
        rows.append(model.vectors(*map(list, ids)))
    return np.concatenate(rows)


def scores(folder: Path, model: Tiny) -> np.ndarray:
    """Return the scores of the pairs."""
    pairs = encode_pairs(load_tokenizer(folder), PAIRS, ["documents"] * len(PAIRS), PairLimits())
    return model.vectors(*(list(pair.token_ids) for pair in pairs), second_from=[pair.second_from for pair in pairs])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.quick else pytest.mark.slow) for case in PUBLISHED_ENCODERS],
)
def test_an_encoder_as_it_is_published_gives_the_vectors_of_sentence_transformers(case, tmp_path):
    model, expected = running(tmp_path, case), np.load(REFERENCES)[case.name]
    found = scores(tmp_path, model) if case.is_reranker else vectors(tmp_path, case, model)
    np.testing.assert_allclose(found, expected, atol=SAME_MODEL_ATOL, rtol=0)
    if not case.is_reranker:
        assert (unit(found) * unit(expected)).sum(-1).min() >= LEAST_COSINE
