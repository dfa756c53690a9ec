from service.observability.metrics import Metrics
from service.start.progress import Phase, StartProgress


def test_a_start_that_waits_for_executables_alone_says_so():
    progress = StartProgress(Metrics())
    assert progress.progress()["phase"] == Phase.LOCATE
    progress.count_executables(1, 3)
    assert progress.progress()["phase"] == Phase.EXECUTABLES
    with progress.phase(Phase.TOKENIZER):
        assert progress.progress()["phase"] == Phase.TOKENIZER
    progress.count_executables(3, 3)
    progress.mark_ready()
    assert progress.progress()["phase"] == "complete"
