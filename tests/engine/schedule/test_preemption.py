"""Preemption: the sequence that releases its pages, and how it resumes."""

from service.engine.request import BACKGROUND_PRIORITY, FinishReason
from tests.engine.schedule.scheduling import make_request, make_scheduler, names, step


def prefill(scheduler, *requests):
    """Add requests whose prompts fit one step together, and run that step."""
    sequences = [scheduler.add(request) for request in requests]
    step(scheduler)
    assert all(sequence.is_running and not sequence.is_prefilling for sequence in sequences)
    return sequences


def run_out_of_pages(scheduler):
    """Run steps until a sequence was preempted, and return the plan that did it."""
    while scheduler.num_preemptions == 0:
        plan, _ = step(scheduler)
    return plan


def test_out_of_pages_the_lowest_rank_gives_way_and_the_best_one_runs():
    scheduler = make_scheduler(num_slots=3, num_pages=5, max_tokens=32)
    best, middle, last = prefill(scheduler, *(make_request(name, max_tokens=8) for name in "abc"))
    assert names(run_out_of_pages(scheduler)) == "ab"
    assert (best.is_running, middle.is_running, last.is_running) == (True, True, False)


def test_every_preemption_is_counted():
    scheduler = make_scheduler(num_slots=2, num_pages=3, max_tokens=32)
    for count, pair in enumerate(("ab", "cd"), 1):
        prefill(scheduler, *(make_request(name, max_tokens=5) for name in pair))
        while not scheduler.is_idle:
            step(scheduler)
        assert scheduler.num_preemptions == count


def test_priority_comes_before_arrival_when_a_sequence_must_give_way():
    scheduler = make_scheduler(num_slots=2, num_pages=3, max_tokens=32)
    first, urgent = prefill(
        scheduler, make_request("first", max_tokens=8, priority=1), make_request("urgent", max_tokens=8)
    )
    assert names(run_out_of_pages(scheduler)) == "u"
    assert (first.is_running, urgent.is_running) == (False, True)


def test_a_batch_gives_a_slot_to_a_client_and_continues_later():
    scheduler = make_scheduler(num_slots=2, num_pages=20, max_tokens=32)
    older, newer = prefill(scheduler, *(make_request(n, max_tokens=4, priority=BACKGROUND_PRIORITY) for n in "xy"))
    client = scheduler.add(make_request("c", max_tokens=3))
    step(scheduler)
    assert (client.is_running, older.is_running, newer.is_running) == (True, True, False)
    others = [scheduler.add(make_request(name, max_tokens=2)) for name in "de"]
    step(scheduler)
    assert [s.is_running for s in (client, older, *others)] == [True, False, True, False]
    while not scheduler.is_idle:
        step(scheduler)
    assert [len(s.output_ids) for s in (older, newer, client, *others)] == [4, 4, 3, 2, 2]
    scheduler.check_integrity()


def test_a_batch_gives_its_pages_to_a_client():
    scheduler = make_scheduler(num_slots=3, num_pages=4, max_tokens=32)
    batch, client = scheduler.add(make_request("b", prompt_len=12, priority=BACKGROUND_PRIORITY)), None
    step(scheduler)
    client = scheduler.add(make_request("c", prompt_len=8))
    step(scheduler)
    assert (batch.is_running, client.is_running) == (False, True)


def test_clients_and_batches_take_no_slot_from_their_like():
    for priority in (0, BACKGROUND_PRIORITY):
        scheduler = make_scheduler(num_slots=1, num_pages=20, max_tokens=32)
        [first] = prefill(scheduler, make_request("a", priority=priority + 1))
        urgent = scheduler.add(make_request("u", priority=priority))
        step(scheduler)
        assert (first.is_running, urgent.is_running, scheduler.num_preemptions) == (True, False, 0)


def test_a_sequence_that_ranks_lowest_itself_leaves_the_step():
    scheduler = make_scheduler(num_slots=2, num_pages=3, max_tokens=32)
    # The first has room in its second page; only the last one needs another page.
    first, last = prefill(scheduler, make_request("f", prompt_len=5), make_request("l", prompt_len=4))
    assert names(step(scheduler)[0]) == "f"
    assert (first.is_running, last.is_running) == (True, False)
    assert (len(first.pages), scheduler.pages.num_available) == (2, 1)


def test_no_more_sequences_give_way_than_needed():
    scheduler = make_scheduler(num_slots=4, num_pages=7, max_tokens=32)
    sequences = prefill(scheduler, *(make_request(name, max_tokens=5) for name in "abcd"))
    assert names(step(scheduler)[0]) == "abc"
    assert scheduler.num_preemptions == 1
    assert [sequence.is_running for sequence in sequences] == [True, True, True, False]


def test_a_preempted_sequence_comes_back_before_those_that_arrived_later():
    scheduler = make_scheduler(num_slots=2, num_pages=4, max_tokens=32)
    _, preempted = prefill(scheduler, *(make_request(name, prompt_len=8, max_tokens=6) for name in "ab"))
    later = scheduler.add(make_request("later"))
    run_out_of_pages(scheduler)
    while not preempted.is_running:
        assert not later.is_running
        step(scheduler)
    assert preempted.is_running


def test_a_preempted_sequence_computes_its_own_output_again_and_no_token_twice():
    scheduler = make_scheduler(num_slots=2, num_pages=5, max_tokens=32)
    old = scheduler.add(make_request("old", prompt_len=6, max_tokens=9))
    young = scheduler.add(make_request("young", prompt_len=6, max_tokens=9))
    resumed = []
    for token_id in range(100, 140):
        plan, _ = step(scheduler, token_id)
        scheduler.check_integrity()
        resumed += [p for p in plan.seqs if p.sequence is young and p.token_ids and scheduler.num_preemptions]
        if scheduler.is_idle:
            break
    assert (old.finish_reason, young.finish_reason) == (FinishReason.LENGTH, FinishReason.LENGTH)
    [chunk] = resumed
    # What it had in a whole page is found again; the rest, its output included, is computed in one sampled chunk.
    assert chunk.is_sampled
    assert chunk.start % 4 == 0
    all_ids = (*young.request.prompt_ids, *young.output_ids)
    assert chunk.token_ids == all_ids[chunk.start : chunk.start + len(chunk.token_ids)]
    assert chunk.start + len(chunk.token_ids) > young.prompt_len
    assert len(set(young.output_ids)) == 9


def test_a_preempted_prompt_starts_over_with_its_first_token_still_to_come():
    scheduler = make_scheduler(num_slots=2, num_pages=6)
    running = scheduler.add(make_request("running", prompt_len=8, max_tokens=16))
    step(scheduler)
    prompt = scheduler.add(make_request("prompt", prompt_len=16, max_tokens=2))
    while scheduler.num_preemptions == 0:
        step(scheduler)
        scheduler.check_integrity()
    assert not prompt.is_running
    assert prompt.output_ids == []
    while not running.is_finished:
        step(scheduler)
    events = []
    while not prompt.is_finished:
        events += step(scheduler)[1]
    assert [event.token_ids for _, event in events] == [(7,), (7,)]
    scheduler.check_integrity()


def test_a_token_that_was_under_way_at_the_preemption_is_kept():
    scheduler = make_scheduler(num_slots=2, num_pages=3, max_tokens=32)
    prefill(scheduler, make_request("a", prompt_len=4, max_tokens=5), make_request("b", prompt_len=3, max_tokens=5))
    under_way = scheduler.plan()
    following = scheduler.plan()
    assert (names(under_way), names(following)) == ("ab", "a")
    assert [sequence.request.id for sequence, _ in scheduler.commit(under_way, [5, 6])] == ["a", "b"]
    scheduler.commit(following, [7])
    preempted = under_way.seqs[1].sequence
    while not preempted.is_finished:
        step(scheduler, token_id=9)
    assert preempted.output_ids == [7, 6, 9, 9, 9]


def test_no_token_beyond_the_last_is_planned_after_a_preemption():
    scheduler = make_scheduler(num_slots=2, num_pages=3, max_tokens=32)
    first, preempted = prefill(
        scheduler, make_request("a", prompt_len=4, max_tokens=5), make_request("b", prompt_len=3, max_tokens=3)
    )
    step(scheduler)
    run_out_of_pages(scheduler)
    assert len(preempted.output_ids) == 2
    while not first.is_finished:
        step(scheduler)
    last = scheduler.plan()
    assert [planned.sequence for planned in last.seqs] == [preempted]
    assert scheduler.plan() is None
    [(_, event)] = scheduler.commit(last, [7])
    assert event.finish_reason is FinishReason.LENGTH
