"""Metrics are written in the form that the caller accepts: OpenMetrics, or Prometheus' older text."""

import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from jax_passing.config import Address
from jax_passing.errors import ConfigError
from jax_passing.metrics import http_server
from jax_passing.metrics.http_server import Response

Families = Iterable[Any]  # of prometheus_client's metric families


def listen(address: Address) -> socket.socket:
    """Returns a socket that listens where metrics are told. Raises ConfigError, also without prometheus-client."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Metrics need the package prometheus-client, which isn't here: pip install prometheus-client, or leave the "
            "setting `metrics` out."
        ) from None
    return http_server.listen(*address)


class _Registry:
    """The library's encoders ask a registry for nothing but this."""

    def __init__(self, families: Callable[[], Families]):
        self._families = families

    def collect(self) -> Families:
        for family in self._families():
            time.sleep(0)  # more urgent threads have their turn: Python's lock isn't kept for a whole text
            yield family


def form_of(accept: str) -> str:
    """Returns the form of metrics, as a content type, that suits a caller with this header."""
    from prometheus_client.exposition import choose_encoder

    return str(choose_encoder(accept)[1])


def written(families: Callable[[], Families], accept: str) -> Response:
    """Writes the metrics in that form."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return Response(encode(_Registry(families)), content_type)
