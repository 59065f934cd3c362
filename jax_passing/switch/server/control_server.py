"""The control plane runs here in an event loop, with real connections and timers (`outside.py`), in one thread."""

import asyncio
import errno
import logging
import socket
from collections import Counter
from typing import Any

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.stream import Stream, StreamOwner
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX
from jax_passing.switch.operators.local import LocalOperators
from jax_passing.switch.server.control_plane import ControlPlane
from jax_passing.switch.server.member_conversation import MemberConversation
from jax_passing.switch.server.settings import SwitchSettings

log = logging.getLogger("jax_passing.switch")

FAREWELL_S = 1.0
# Messages to a peer that doesn't read pile up in our memory. There is room for three of the longest for each of the 63
# others of a job, though the network were to stand still; then whoever has most of it unread is given up.
UNSENT_TOTAL_BYTES_MAX = 256 * messages.RELAY_BYTES_MAX
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ControlServer(StreamOwner):
    """A switch's control plane hears all its connections by this.

    Attributes:
      plane: the control plane.
      streams: its connections.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        settings: SwitchSettings,
        switch_key: bytes | None = None,
        connections_max: int = CONNECTIONS_MAX,
        counts: Counter[str] | None = None,
    ):
        """Is called in the event loop that it is to run in. `counts`: others' counters, which it tells with its own."""
        super().__init__(asyncio.get_running_loop())
        self._server: asyncio.Server | None = None
        self.streams: set[Stream] = set()
        self._gone = asyncio.Event()  # all of them
        self._gone.set()
        self._accepts_failed = 0
        self.plane = ControlPlane(data_plane, self, settings, switch_key, connections_max, counts)
        self._operators = LocalOperators(self.plane.operator)

    async def listen(self, listener: socket.socket) -> None:
        """Lets hosts come from now on."""
        self._loop.set_exception_handler(self._on_loop_error)
        self._server = await self._loop.create_server(self._accept, sock=listener)
        await self._operators.listen(*listener.getsockname()[:2])

    async def shut_down(self) -> None:
        """Tells every host, then closes every connection."""
        if self._server is not None:
            self._server.close()
        self._operators.close()
        self.plane.shut_down()
        for stream in list(self.streams):
            stream.close()
        try:
            await asyncio.wait_for(self._gone.wait(), FAREWELL_S)
        except TimeoutError:
            for stream in list(self.streams):
                stream.give_up()
            await self._gone.wait()
        for call in self._calls:
            call.cancel()

    def stats(self) -> dict[str, int]:
        """Returns counters since the start."""
        failed = {"accepts_failed": self._accepts_failed} if self._accepts_failed else {}
        return {**self.plane.stats(), **failed}

    def _accept(self) -> Stream:
        return Stream(self, MemberConversation(self.plane), None, is_caller=False)

    # Streams use this.

    def add(self, stream: Stream) -> None:
        self.streams.add(stream)
        self._gone.clear()

    def remove(self, stream: Stream) -> None:
        self.streams.discard(stream)
        if not self.streams:
            self._gone.set()

    def on_stalled(self) -> None:
        if sum(stream.unsent_bytes for stream in self.streams) > UNSENT_TOTAL_BYTES_MAX:
            max(self.streams, key=lambda stream: stream.unsent_bytes).give_up_unread()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context:
            self._accepts_failed += 1
            log.error("no connection can be accepted: %s", error)  # it is tried again after a second
        else:
            loop.default_exception_handler(context)

    async def _call(self, address: tuple[str, int], timeout_s: float, stream: Stream) -> None:
        try:
            await asyncio.wait_for(self._loop.create_connection(lambda: stream, *address), timeout_s)
        except (OSError, ValueError) as error:
            stream.end(error)
