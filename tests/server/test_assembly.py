"""What the API of a process takes from its settings and from what its start has found."""

import pytest

from service.api.http.keys import ApiKeys
from service.observability.metrics import Metrics
from service.server.assembly import Api
from service.server.service import Service
from service.settings import Settings


@pytest.mark.parametrize(("data_parallel", "before"), [(1, 4), (2, 8), ("auto", 4)])
def test_the_queue_counts_the_slots_of_all_engines(data_parallel, before, tmp_path):
    settings = Settings(max_num_seqs=4, data_parallel=data_parallel, local_model_cache=tmp_path)
    metrics = Metrics()
    caps = Api(Service(settings), settings, metrics, ApiKeys()).app.state.context.queue.caps
    assert caps.num_slots() == before
    model = metrics.of_model("chosen")
    for number in range(3):
        model.load_of(number).num_slots = 4
    assert caps.num_slots() == 12
