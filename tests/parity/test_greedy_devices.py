"""Several devices agree on the likeliest token without exchanging their logits."""

from service.engine.steps.sampling import BROKEN
from tests.process import run_on_devices


def test_devices_exchange_the_best_of_their_logits_and_the_first_of_equals_wins():
    alone, shared = run_on_devices("tests.parity.greedy_devices_process", num_devices=4)
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
