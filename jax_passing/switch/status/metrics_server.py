"""A switch tells metrics, and whether it admits jobs, by HTTP (`--metrics`).

Metrics come from the status document, which the control loop makes no more often for more scrapes. A thread of its own
writes them: many ranks are many lines, for which nobody else has to wait.
"""

import asyncio
import functools
import socket
from http import HTTPStatus

from jax_passing.http_server import HttpServer, Response
from jax_passing.metrics.exposition import form_of, written
from jax_passing.protocol.overview import Document
from jax_passing.switch.status.families import families
from jax_passing.switch.status.report import Report


class MetricsServer:
    """Answers /metrics and /health by a switch's report."""

    def __init__(self, report: Report):
        self._report = report
        self._http = HttpServer({"/metrics": self._metrics, "/health": self._health})
        self._writing = asyncio.Lock()  # one at a time
        self._document: Document = {}
        self._written: dict[str, Response] = {}  # of this document, by its form

    async def serve(self, listener: socket.socket) -> None:
        """Serves from now on. Takes the socket."""
        await self._http.serve(listener)

    def close(self) -> None:
        self._http.close()

    async def _metrics(self, accept: str) -> Response:
        async with self._writing:
            document = self._report.document()
            if document is not self._document:
                self._document, self._written = document, {}
            form = form_of(accept)
            if form not in self._written:
                write = functools.partial(written, functools.partial(families, document), accept)
                self._written[form] = await asyncio.to_thread(write)
            return self._written[form]

    async def _health(self, accept: str) -> Response:
        switch = self._report.document()["switch"]
        if switch["trouble"]:
            problem = f"the data plane has failed: {switch['trouble']}"
        elif switch["draining"] is not None:
            reason = switch["draining"]["reason"]
            problem = "the operator drains this switch" + (f": {reason}" if reason else "")
        else:
            return Response(b"this switch admits jobs\n")
        return Response(f"{problem}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
