"""The creation of Prometheus series in a registry of their own."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.observability.exposition import OWN_PREFIX


class SeriesSet:
    """Series in a registry of their own, so that tests and models do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{OWN_PREFIX}{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{OWN_PREFIX}{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{OWN_PREFIX}{name}", text, buckets=buckets, registry=self.registry)
