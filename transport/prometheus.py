"""Metrics in the formats of Prometheus, by `prometheus_client`: for `/metrics`, and for the registry of a host."""

import threading
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from warren.base.values import frozen
from warren.calls.facade import RuntimeService
from warren.reports.metrics import Metric, Metrics

INFINITE: Final = "+Inf"
INFO: Final = "_info"


@frozen
class _Read(Collector):
    """A collector of metrics that were read before."""

    metrics: Metrics

    def collect(self) -> Iterator[Family]:
        return map(_family, self.metrics.metrics)


class RuntimeCollector(Collector):
    """The metrics of a runtime, for a registry of `prometheus_client`: `registry.register(RuntimeCollector(service))`.

    Make it on the event loop of the runtime. It may be collected in any thread: another one than that of the event loop
    waits until the loop has a moment. After the end of the event loop it has no metrics.
    """

    def __init__(self, service: RuntimeService) -> None:
        """Collect the metrics of this runtime."""
        self._service = service
        self._loop = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()

    def collect(self) -> Iterator[Family]:
        """Return the metrics of this moment."""
        read = self._service.metrics
        try:
            here = threading.get_ident() == self._thread
            found = read() if here else trio.from_thread.run_sync(read, trio_token=self._loop)
        except trio.RunFinishedError:
            return iter(())
        return map(_family, found.metrics)


def exposed(metrics: Metrics, accept: str) -> tuple[bytes, str]:
    """Return metrics in the format that a client accepts, and the media type of that format. It takes milliseconds.

    Args:
        metrics: the metrics.
        accept: the `Accept` header of the client.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(metrics))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def _family(metric: Metric) -> Family:
    name, labels = metric.name, metric.labels
    match metric.kind:
        case "counter":
            counter = CounterMetricFamily(name, metric.help, labels=labels)
            for each in metric.series:
                counter.add_metric(each.labels, each.value)
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(name, metric.help, labels=labels)
            for each in metric.series:
                gauge.add_metric(each.labels, each.value)
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(name, metric.help, labels=labels)
            bounds = [*(str(bound) for bound in metric.bounds), INFINITE]
            for each in metric.series:
                buckets = zip(bounds, map(float, accumulate(each.counts)), strict=True)
                histogram.add_metric(each.labels, list(buckets), each.value)
            return histogram
        case "info":
            info = InfoMetricFamily(name.removesuffix(INFO), metric.help)
            for each in metric.series:
                info.add_metric((), dict(zip(labels, each.labels, strict=True)))
            return info
