"""Metrics are written in the form that the caller accepts: OpenMetrics, or Prometheus' older text."""

import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from jax_passing import http_server
from jax_passing.config import Address
from jax_passing.errors import ConfigError
from jax_passing.http_server import Response

Families = Iterable[Any]  # of prometheus_client's metric families
_OPENMETRICS, _VERSION = "application/openmetrics-text", "version=1.0.0"


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
    """Returns the header that stands for all those which want the same form as this one: there are two, whatever
    callers write."""
    for accepted in accept.split(","):
        kind, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [parameter for parameter in parameters if parameter.startswith("version=")]
        if kind == _OPENMETRICS and versions in ([], [_VERSION]):
            return f"{_OPENMETRICS}; {_VERSION}"
    return ""


def written(families: Callable[[], Families], accept: str) -> Response:
    """Writes the metrics in the form that suits a caller with this header."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(form_of(accept))
    return Response(encode(_Registry(families)), content_type)
