"""Input items are listed in pages to their end, whatever ids a client has given them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.memory.continued import MAX_NAME_CHARS, with_own_ids
from tests.api.test_stored_responses import RememberingService

LONG = "x" * (MAX_NAME_CHARS + 1)
IDS = st.sampled_from(["", "a", "a.1", "a.1_", "a.2", "b", LONG, LONG + "y", "x" * 64 + ".3"])


@given(st.lists(IDS, max_size=12))
def test_each_item_has_an_id_that_a_query_can_hold(ids):
    items = [{"id": item_id, "number": number} for number, item_id in enumerate(ids)]
    listed = [item["id"] for item in with_own_ids(items)]
    assert len(set(listed)) == len(ids)
    assert all(0 < len(item_id) <= MAX_NAME_CHARS for item_id in listed)
    firsts = [number for number, item_id in enumerate(ids) if item_id in ("a", "b") and item_id not in ids[:number]]
    assert [listed[number] for number in firsts] == [ids[number] for number in firsts]
    assert [item["number"] for item in with_own_ids(items)] == list(range(len(ids)))
    assert [item["id"] for item in items] == ids


@pytest.mark.anyio
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_items_that_repeat_an_id_are_listed_once_each(tmp_path, order):
    service = RememberingService(tmp_path)
    ids = ["msg_1", "msg_2", "msg_1", "msg_1", "", "", LONG, "msg_1.2"]
    sent = [{"role": "user", "content": str(n), "id": item_id} for n, item_id in enumerate(ids)]
    response = await service.create(input=sent)
    pages = service.api().responses.input_items.list(response.id, limit=1, order=order)
    texts = []
    async for item in pages:
        texts.append(item.content[0].text)
        assert len(texts) <= len(ids)
    assert texts == sorted(map(str, range(len(ids))), reverse=order == "desc")
