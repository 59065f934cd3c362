"""Finds out how long packets between a host and a switch may be: who opens the socket asks the kernel, then the path.

The switch sends a probe of that length back. So packets that long pass both ways, and nobody cuts them in two. No I/O.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from jax_passing.protocol.all_versions import Hello
from jax_passing.protocol.outside import Outside, Timer
from jax_passing.protocol.packet import LANES_AT_MTU_1500, LANES_MAX

log = logging.getLogger("jax_passing")

LONG_LANES_MIN = 2 * LANES_AT_MTU_1500  # fewer aren't worth a probe
TICK_S = 0.005
ROUNDS_S = (0.04, 0.08, 0.16, 0.32, 0.64)  # until the next probe, or the end: probes get lost, and hosts are busy


class PathSocket(Protocol):
    """This socket is connected to a switch's data port."""

    def lanes_that_fit(self) -> int:
        """Returns how many lanes a packet with a tag may have, as far as the kernel knows. Raises OSError."""

    def probe_path(self, nonce: int, lanes: int) -> None:
        """Sends a probe that nobody may cut."""

    def hears_path(self, nonce: int, lanes: int) -> bool:
        """Says whether it has come back."""


class PathProbe:
    """Finds out how many lanes the packets on one path may have: LANES_AT_MTU_1500 at least, as all paths carry these,
    if need be in two parts."""

    def __init__(
        self, outside: Outside, socket: PathSocket, hello: Hello, switch: str, on_known: Callable[[int], None]
    ) -> None:
        """`switch`: its name, for people. `on_known`: is called once with the number, perhaps at once."""
        self._outside, self._switch = outside, switch
        self._socket: PathSocket | None = socket  # until it is over: who lets go of a socket closes it
        self._on_known: Callable[[int], None] | None = on_known
        self._nonce = hello.path_nonce
        self._timer: Timer | None = None
        self._rounds = list(ROUNDS_S)
        self._next_s = outside.now()
        try:
            self._lanes = min(hello.lanes, LANES_MAX, socket.lanes_that_fit() if hello.lanes >= LONG_LANES_MIN else 0)
        except OSError:
            self._lanes = 0
        if self._lanes < LONG_LANES_MIN:
            self._end(LANES_AT_MTU_1500)
        else:
            self._tick()

    def stop(self) -> None:
        """Lets it call nobody any more."""
        self._socket = self._on_known = None
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, lanes: int) -> None:
        on_known = self._on_known
        self.stop()
        assert on_known is not None
        on_known(lanes)

    def _tick(self) -> None:
        assert self._socket is not None
        if self._socket.hears_path(self._nonce, self._lanes):
            self._end(self._lanes)
            return
        if self._outside.now() >= self._next_s:
            if not self._rounds:
                log.warning(
                    "packets of %d lanes don't come back from the switch at %s, though this machine's network card "
                    "sends them: taking packets of %d lanes. Does every device between the two have the same MTU?",
                    self._lanes,
                    self._switch,
                    LANES_AT_MTU_1500,
                )
                self._end(LANES_AT_MTU_1500)
                return
            self._next_s = self._outside.now() + self._rounds.pop(0)
            self._socket.probe_path(self._nonce, self._lanes)
        self._timer = self._outside.call_later(TICK_S, self._tick)
