"""A host's part in a job needs this of the world besides time and connections: packets, and the sums that they carry.

`loop.py` gives it the real ones; a simulator of the tests gives its own.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import outside

if TYPE_CHECKING:
    from jax_passing._native import NonFinite, ProgramInfo, Stall


class PacketSocket(Protocol):
    """This socket is connected to all planes of a switch."""

    @property
    def port(self) -> int: ...

    def lanes_that_fit(self) -> int:
        """This and the next two are those of path_probe.PathSocket."""

    def probe_path(self, nonce: int, lanes: int) -> None: ...

    def hears_path(self, nonce: int, lanes: int) -> bool: ...

    def join_group(self, offer: messages.GroupOffer, on_heard: Callable[[], None]) -> None:
        """`on_heard` is called once all probes have been heard. Raises OSError or ValueError."""

    def leave_group(self) -> None: ...

    def close(self) -> None: ...


class WelcomedShard(Protocol):
    """A transport needs this of a job at one of its switches, which is one shard for each of its planes."""

    @property
    def name(self) -> str: ...
    @property
    def data_address(self) -> tuple[str, int]: ...
    @property
    def socket(self) -> PacketSocket: ...
    @property
    def welcome(self) -> messages.Welcome: ...


class Lifeline(Protocol):
    def close(self) -> None:
        """Says no more that this process lives."""


class TransportEvents(Protocol):
    """A transport asks this of its session."""

    def order(self, payload: bytes) -> None:
        """Relays this: rank 0's to all other ranks, theirs to rank 0."""

    def program(self, info: "ProgramInfo") -> None:
        """Is called when one of ours runs for the first time."""

    def stalled(self, stall: "Stall", stalled_s: float) -> None: ...

    def group_lost(self, shard: int) -> None: ...

    def non_finite(self, first: "NonFinite") -> None:
        """Is called once, if that is to be checked."""

    def transport_failed(self, kind: str, message: str) -> None: ...


class Transport(Protocol):
    """A transport makes one rank's sums. `failure`, `drain` and `stats` may be called on any thread; `close` is bounded
    in time."""

    @property
    def native(self) -> Any:
        """Returns what the handlers of this process are given."""

    def deliver_order_message(self, message: bytes) -> None: ...
    def note_stall(self, note: str) -> None: ...
    def fail(self, kind: str, message: str) -> None: ...
    def failure(self) -> tuple[str, str] | None: ...
    def drain(self, timeout_s: float) -> bool: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class HostOutside(outside.Outside, Protocol):
    @property
    def instance(self) -> str:
        """Tells this process from any other."""

    @property
    def host_name(self) -> str:
        """Returns this machine's, for people."""

    def open_socket(self, host: str, port: int, planes: int) -> PacketSocket:
        """`port`: of the first plane; those of the others follow. Raises OSError."""

    def lifeline(self, address: tuple[str, int], token: str, period_s: float) -> Lifeline:
        """Tells a switch that this process lives, whatever its interpreter does (messages.Lifeline). If that fails it
        says nothing: the connection of this token has its own heartbeats."""

    def start_transport(
        self, links: Sequence[WelcomedShard], events: TransportEvents, *, planes: int, **settings: Any
    ) -> Transport:
        """`planes`: how many of each switch it uses: its shards are the planes of the first switch, then those of the
        next. `settings`: those of _native.Transport. It takes the sockets. Raises ValueError."""
