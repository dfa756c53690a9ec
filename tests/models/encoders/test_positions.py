"""Rows of the table of positions, of texts that have the padding token, in steps of several texts."""

import numpy as np
import pytest

from service.models.encoders.encoder import rows_of_positions
from service.models.encoders.packing import PackedTokens


@pytest.mark.parametrize("padding_id", [0, 1])
def test_a_padding_token_has_a_row_of_its_own_and_is_not_counted(padding_id: int):
    """Written from transformers' create_position_ids_from_input_ids, which counts the other tokens of a text."""
    random = np.random.RandomState(3)
    texts = [random.randint(0, 4, length) for length in (5, 1, 9, 3)]
    counted = [(text != padding_id) for text in texts]
    expected = np.concatenate([np.cumsum(mask) * mask + padding_id for mask in counted])
    positions = np.concatenate([np.arange(len(text)) for text in texts])
    ids = np.concatenate(texts).astype(np.int32)
    tokens = PackedTokens(ids, positions.astype(np.int32), np.zeros_like(ids))
    np.testing.assert_array_equal(rows_of_positions(tokens, padding_id + 1), expected)


def test_a_table_without_such_a_row_counts_every_token():
    tokens = PackedTokens(np.zeros(3, np.int32), np.arange(3, dtype=np.int32), np.zeros(3, np.int32))
    np.testing.assert_array_equal(rows_of_positions(tokens, 0), [0, 1, 2])
