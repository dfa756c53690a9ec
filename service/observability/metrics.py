"""The Prometheus series of a process, with vLLM's names under our prefix where vLLM has the same series.

Source: https://docs.vllm.ai/en/latest/usage/metrics.html (names), https://prometheus.io/docs/practices/naming/
"""

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST, CONTENT_TYPE_PLAIN_0_0_4

from service.observability.exposition import BothNames
from service.observability.model_load import ModelLoad, load_exposition
from service.observability.model_metrics import ModelMetrics, ModelSeries, SeriesSet

CONTENT_TYPE = CONTENT_TYPE_LATEST
LOAD_PATH = "/metrics/load"
LOAD_CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics(SeriesSet):
    """All series of a service instance."""

    def __init__(self, *, has_vllm_names: bool = False) -> None:
        """Create the series of the process; `of_model` creates the series of a model.

        Args:
            has_vllm_names: whether to also export series under vLLM's names (METRICS_COMPAT).
        """
        super().__init__()
        self.shown = BothNames(self.registry) if has_vllm_names else self.registry
        ProcessCollector(registry=self.registry)
        self._models = ModelSeries()
        self.registry.register(self._models)
        self._add_answers()
        self._add_start()

    def of_model(self, name: str) -> ModelMetrics:
        """Return the series of a model's requests and engine, which /metrics labels with its name."""
        return self._models.of_model(name)

    def exposition(self) -> bytes:
        """Return all series in Prometheus's text format."""
        return generate_latest(self.shown)  # pyright: ignore[reportArgumentType]  only `collect` is called

    def loads(self) -> dict[str, ModelLoad]:
        """Return the load of every model by name."""
        return self._models.loads()

    def load_exposition(self) -> bytes:
        """Return the series that endpoint pickers read, under vLLM's names, in Prometheus's text format."""
        return load_exposition(self.loads())

    def _add_answers(self) -> None:
        self.http_responses = self._counter("http_responses", "Answers by route and status.", "route", "status")
        self.request_refusals = self._counter("request_refusals", "Answers that are errors, by their code.", "reason")
        self.ignored_fields = self._counter("ignored_fields", "Fields that were accepted without effect.", "field")
        self.batches_running = self._gauge("batches_running", "Batches that this process works on.")
        self.batch_lines = self._counter("batch_lines", "Lines of ended batches: completed, failed.", "outcome")
        self.batches_ended = self._counter("batches_ended", "Batches that have ended, by their status.", "status")

    def _add_start(self) -> None:
        self.xla_compiles = self._counter("xla_compiles", "XLA compilations in this process.")
        self.xla_compiles_after_ready = self._counter("xla_compiles_after_ready", "The same, after ready: must stay 0.")
        self.bundle_load = self._counter(
            "bundle_load", "Bundle lookups: hit, miss, corrupt, stale, unsigned.", "outcome"
        )
        self.startup_phase_seconds = self._gauge("startup_phase_seconds", "Duration of a phase of the start.", "phase")
