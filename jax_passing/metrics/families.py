"""Families of metrics are made here of their samples. It needs prometheus-client, so import it late."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Samples = Iterable[tuple[Sequence[str], float]]  # the values of the labels, and the sample's own


@dataclass(frozen=True)
class Maker:
    """Makes families whose names begin with `prefix`."""

    prefix: str

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Makes a family of values that go up and down."""
        return _filled(GaugeMetricFamily(f"{self.prefix}_{name}", text, labels=labels), samples)

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Makes a family of values that only grow; their names get the ending "_total"."""
        return _filled(CounterMetricFamily(f"{self.prefix}_{name}", text, labels=labels), samples)


def _filled(family: Any, samples: Samples) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
