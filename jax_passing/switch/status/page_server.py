"""A switch shows a web page (`--page`): one that is always the same, whose script asks for the status as JSON.

The page only reads. It loads nothing from elsewhere, no other page may show or read it, and its script makes no HTML of
texts, which come from hosts.
"""

import asyncio
import bisect
import ipaddress
import itertools
import logging
import socket
import time
from importlib.resources import files

import msgspec

from jax_passing import http_server, job_names
from jax_passing.config import address_text
from jax_passing.http_server import HttpServer, Response, Route
from jax_passing.protocol import sentences
from jax_passing.protocol.overview import Document, overview
from jax_passing.switch.jobs.history import SPAN_S, History, Point
from jax_passing.switch.jobs.recent import SAMPLE_S
from jax_passing.switch.status.report import Report

log = logging.getLogger("jax_passing.switch")

JOBS_MAX = 64
RANKS_MAX = 2048  # of all of them, with those that are absent
CHARACTERS_MAX = 1000  # of a text that names ranks

_HEADERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cross-Origin-Opener-Policy: same-origin",
    "Referrer-Policy: no-referrer",
)
_KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens where the page is shown. Raises ConfigError."""
    return http_server.listen(host, port, "show the page")


class PageServer:
    """Shows the page, and tells it the status by a switch's report and history."""

    def __init__(self, report: Report, history: History, host: str, switch: str):
        """`host`: of the page, as its operator calls it. `switch`: the address of the switch itself."""
        self._report, self._history, self._switch = report, history, switch
        pages = {path: _file(name) for path, name in _FILES.items()}
        self._http = HttpServer({**pages, "/status.json": self._status}, "page", {host.lower(), "localhost"})
        self._writing = asyncio.Lock()  # one at a time
        self._document: Document = {}
        self._written = Response(b"")  # of this document

    async def serve(self, listener: socket.socket) -> None:
        """Shows it from now on. Takes the socket."""
        host, port = listener.getsockname()[:2]
        if not ipaddress.ip_address(host).is_loopback:
            key = ", without the key that jax-passing status wants" if self._report.has_key else ""
            address = address_text(host, port)
            log.warning("the page at %s tells all of the status to everybody who reaches it%s", address, key)
        await self._http.serve(listener)

    def close(self) -> None:
        self._http.close()

    async def _status(self, accept: str) -> Response:
        async with self._writing:
            document = self._report.document()
            if document is not self._document:
                points = self._history.points(self._report.now())
                self._written = await asyncio.to_thread(self._write, document, points, self._report.now())
                self._document = document
            return self._written

    def _write(self, document: Document, points: dict[str, list[Point]], now: float) -> Response:
        shown, left_out = _bounded(document)
        seen = sentences.readable(overview({self._switch: shown}))
        seen["left_out"] = left_out
        time.sleep(0)  # more urgent threads have their turn
        seen["refused_for"] = document["refused_for"]
        seen["sentences"] = _sentences(seen)
        by_job: dict[str, list[tuple[float, ...]]] = {}
        for job, several in points.items():  # of several shards of a job here, the first one stands for all
            name = sentences.readable(job.partition(job_names.SHARD_MARK)[0])
            by_job.setdefault(name, [(now - at, *values) for at, *values in several])
        seen["history"] = {"span_s": SPAN_S, "step_s": SAMPLE_S, "jobs": by_job}
        return Response(msgspec.json.encode(seen), "application/json", headers=_HEADERS)


def _bounded(document: Document) -> tuple[Document, Document]:
    """Leaves as many jobs and ranks as somebody looks at, and strangers may make any number of them. Jobs that have run
    longest come first, and ranks that are here before those that any job lacks. Returns how much is left out, too."""
    jobs = sorted(document["jobs"], key=lambda job: (job["state"] != "running", -job["for_s"]))
    room = RANKS_MAX
    shown = []
    for job in jobs[:JOBS_MAX]:
        after = list(itertools.accumulate(len(member["ranks"]) for member in job["members"]))
        members = job["members"][: bisect.bisect_right(after, room)]
        room -= after[len(members) - 1] if members else 0
        shown.append(_with(job, members))
    for job in shown:
        job["absent"] = job["absent"][:room]
        room -= len(job["absent"])
    ranks = sum(len(job["absent"]) + sum(len(member["ranks"]) for member in job["members"]) for job in jobs)
    return {**document, "jobs": shown}, {"jobs": len(jobs) - len(shown), "ranks": ranks - (RANKS_MAX - room)}


def _with(job: Document, members: list[Document]) -> Document:
    """Leaves only these members of a job."""
    here = {rank for member in members for rank in member["ranks"]}
    oldest = job["oldest"]
    if oldest is not None:
        missing = [rank for rank in oldest["missing"] if rank in here]
        oldest = {**oldest, "missing": missing, "waits_for": _cut(oldest["waits_for"])}
    left = [rank for rank in job["left"] if rank in here]
    return {**job, "members": members, "left": left, "oldest": oldest, "awaits": _cut(job["awaits"])}


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}..."


def _sentences(seen: Document) -> Document:
    return {
        "switch": [sentence for switch in seen["switches"] for sentence in sentences.of_switch(switch)],
        "jobs": [sentences.of_job(job) for job in seen["jobs"]],
        "meetings": [
            *(f"job {meeting['job']}: {sentences.of_meeting(meeting)}" for meeting in seen["meetings"]),
            *sentences.more_meetings(seen),
        ],
        "recoveries": [sentences.of_recovery(recovery) for recovery in seen["recoveries"]],
        "refusals": [sentences.of_refusal(refusal) for refusal in seen["refusals"]],
        "ended": sentences.ended(seen),
    }


def _file(name: str) -> Route:
    body = (files("jax_passing.switch.status") / "page" / name).read_bytes()
    response = Response(body, _KINDS[name.rpartition(".")[2]], headers=_HEADERS)

    async def route(accept: str) -> Response:
        return response

    return route
