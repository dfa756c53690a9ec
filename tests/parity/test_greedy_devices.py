"""Several devices agree on the likeliest token without exchanging their logits."""

import pytest

from service.engine.steps.sampling import BROKEN
from tests.process import run_on_devices

pytestmark = pytest.mark.grid  # four devices compile each program


@pytest.fixture(scope="module")
def results() -> list[dict]:
    """The results on one device and on four."""
    return run_on_devices("tests.parity.greedy_devices_process", num_devices=4)


def test_devices_exchange_the_best_of_their_logits_and_the_first_of_equals_wins(results):
    alone, shared = results
    assert shared["token_ids"] == alone["token_ids"]
    *token_ids, last = shared["token_ids"]
    assert max(token_ids) < shared["vocab_size"] // 2
    assert len(set(token_ids)) > len(token_ids) // 4
    assert last == BROKEN
    for name, found in shared["collectives"].items():
        kinds = {kind for kind, _ in found}
        if "greedy" in name:
            num_seqs = int(name.rpartition("seqs")[2])
            assert kinds == {"all-reduce"}
            assert all(shape == [num_seqs] for _, shape in found)
        else:  # of whom a mask, or a random number, needs all logits in one place
            assert kinds == {"all-gather"}


def test_a_whole_step_exchanges_no_logits_where_it_takes_the_likeliest_token(results):
    alone, shared = results
    assert shared["generated"] == alone["generated"]
    assert len(shared["generated"]) == 12
    assert max(shared["generated"]) < shared["vocab_size"] // 2
    assert len(set(shared["generated"])) > 3
    num_found = {name: len(found) for name, found in alone["whole_collectives"].items()}
    assert num_found == {"whole-greedy-seqs1-rows0": 0, "whole-random-seqs1-rows0": 0, "whole-top-p-seqs1-rows0": 0}
    for name, found in shared["whole_collectives"].items():
        logits = [shape for _, shape in found if shared["vocab_size"] in shape]
        assert logits == ([] if "greedy" in name else [[1, shared["vocab_size"]]])
        kinds = {kind for kind, shape in found if shape != [1, shared["hidden_size"]]}
        assert kinds == ({"all-reduce"} if "greedy" in name else {"all-gather"})
