"""The metrics of an endpoint, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from continual_petl.serve.catalog import Catalog
from continual_petl.serve.local_engine import Engine
from continual_petl.serve.logs import num_dropped

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters and histograms of one endpoint."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name = "continual_petl_{}".format
        self.requests = Counter(
            name("requests"), "Requests by path and status", ("path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            name("request_seconds"), "Seconds per request", ("path",), buckets=_SECONDS, registry=self.registry
        )
        self.rows = Counter(name("rows"), "Computed rows, by queue", ("queue",), registry=self.registry)
        self.batch_rows = Histogram(
            name("batch_rows"), "Rows per batch, by queue", ("queue",), buckets=_ROWS, registry=self.registry
        )

    def seen(self, queue: str, rows: int) -> None:
        """Count a batch."""
        self.rows.labels(queue).inc(rows)
        self.batch_rows.labels(queue).observe(rows)

    def watch(self, engine: Engine, catalog: Catalog) -> None:
        """Add the values that are read from engine and catalog whenever the metrics are requested."""
        self.registry.register(_State(engine, catalog))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _State(Collector):
    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine, self._catalog = engine, catalog

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("continual_petl_waiting_rows", "Waiting rows, by queue", labels=("queue",))
        for queue, rows in self._engine.num_waiting.items():
            waiting.add_metric((queue,), rows)
        yield waiting
        banks, size = self._engine.num_held
        yield GaugeMetricFamily("continual_petl_banks_in_memory", "Banks in memory", banks)
        yield GaugeMetricFamily("continual_petl_bank_bytes_in_memory", "Bytes of the banks in memory", size)
        yield GaugeMetricFamily("continual_petl_tasks", "Learned tasks", len(self._catalog.seals))
        yield CounterMetricFamily("continual_petl_dropped_log_lines", "Lines that the log has dropped", num_dropped())
