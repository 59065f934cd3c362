"""A small server has a few pages that only read. It runs in an event loop beside more urgent things, so it bounds the
time and the memory that a caller takes, and gives each connection one answer."""

import asyncio
import errno
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from jax_passing.config import address_text
from jax_passing.errors import ConfigError

log = logging.getLogger("jax_passing")

CONNECTIONS_MAX = 16
REQUEST_BYTES_MAX = 16 * 1024
REQUEST_S = 10.0  # from the first byte of the question to the last one of the answer


@dataclass(frozen=True)
class Response:
    """Answers a caller. `headers`: lines besides those that each answer has."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[str, ...] = ()


Route = Callable[[str], Awaitable[Response]]  # is given what the caller accepts


def listen(host: str, port: int, what: str = "tell metrics") -> socket.socket:
    """Returns a listening socket. `what`: it is for, in words. Raises ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family)
    except OSError as error:
        why = os.strerror(error.errno or 0) if error.errno in errno.errorcode else error.strerror
        raise ConfigError(
            f"Can't {what} at {address_text(host, port)}: {why}. Give an address of this machine, and a port "
            "of its own to each process (port 0 takes any that is free)."
        ) from error


class HttpServer:
    """Answers GET and HEAD by `routes`, which have a path each."""

    def __init__(self, routes: Mapping[str, Route], what: str = "metrics", names: Collection[str] | None = None):
        """`what`: there is, in a word. `names`: by which alone callers may call this server, besides addresses; None:
        by any."""
        self._routes, self._what, self._names = dict(routes), what, names
        self._connections: dict[asyncio.StreamWriter, bool] = {}  # the oldest first; whether we owe it an answer now
        self._server: asyncio.Server | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Serves from now on, in this event loop. Takes the socket."""
        self._server = await asyncio.start_server(self._on_connection, sock=listener, limit=REQUEST_BYTES_MAX)
        address = address_text(*listener.getsockname()[:2])
        log.info("%s at http://%s: %s", self._what, address, ", ".join(self._routes))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX and not self._has_made_room():
            writer.transport.abort()
            return
        self._connections[writer] = False
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await _request(reader)
                if writer not in self._connections:
                    return
                self._connections[writer] = True
                answer = await self._answer(request)
                self._connections[writer] = False
                writer.write(answer)
                writer.close()
                await writer.wait_closed()  # until then the event loop keeps the rest of the answer
        except (OSError, EOFError):  # it was too slow, or is gone
            pass
        except asyncio.CancelledError:  # the event loop ends; asyncio of Python 3.11 would write a traceback
            pass
        finally:
            writer.transport.abort()
            self._connections.pop(writer, None)

    def _has_made_room(self) -> bool:
        """Hangs up on the caller for which we have waited longest: it asks or reads slowly, and others are quick."""
        slow = next((writer for writer, is_our_turn in self._connections.items() if not is_our_turn), None)
        if slow is None:
            return False
        del self._connections[slow]
        slow.transport.abort()
        return True

    async def _answer(self, request: str | None) -> bytes:
        if request is None:
            return _written(_problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), has_body=True)
        first, *headers = request.split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _written(_problem(HTTPStatus.METHOD_NOT_ALLOWED), has_body=True)
        if self._names is not None and not _is_called(_value_of("host", headers), self._names):
            # The browser of somebody who may reach us was led here by the name of a stranger's page, which would read
            # our answer as its own (DNS rebinding).
            return _written(_problem(HTTPStatus.MISDIRECTED_REQUEST), has_body=method == "GET")
        if (route := self._routes.get(path)) is None:
            return _written(_problem(HTTPStatus.NOT_FOUND, ", ".join(self._routes)), has_body=method == "GET")
        try:
            response = await route(_value_of("accept", headers))
        except Exception:  # a fault of ours: the caller hears of it, and all else goes on
            log.exception("%s can't be told", path)
            response = _problem(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _written(response, has_body=method == "GET")


def _is_called(host: str, names: Collection[str]) -> bool:
    """Says whether this header calls us by an address, or by one of these names."""
    name = re.sub(r":\d*\Z", "", host).lower()
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name in names
    return True


async def _request(reader: asyncio.StreamReader) -> str | None:
    """Reads a request's head; None if that is too long."""
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        return None


def _problem(status: HTTPStatus, more: str = "") -> Response:
    return Response(f"{status.phrase}{': there is ' + more if more else ''}\n".encode(), status=status)


def _value_of(name: str, headers: list[str]) -> str:
    for header in headers:
        key, _, value = header.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _written(response: Response, *, has_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *response.headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (response.body if has_body else b"")
