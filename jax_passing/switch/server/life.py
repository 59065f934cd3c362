"""A host lives as long as its connection says so, or its lifeline (`messages.Lifeline`) does for a while."""

from collections.abc import Callable

from jax_passing.protocol.lease import INTERPRETER_HELD_S, Lease
from jax_passing.protocol.outside import Outside


class Life:
    """The life of one host, or of a rack's switch.

    Attributes:
      token: names it in a Lifeline.
      lease_s: for how long it may be silent, from `expect` on.
    """

    def __init__(self, outside: Outside):
        self._outside = outside
        self.token = f"{outside.random_bits(128):032x}"
        self.lease_s = 0.0
        self._heard_s = outside.now()
        self._lease: Lease | None = None
        self._hang_up: Callable[[str], None] | None = None  # on its lifeline

    def expect(self, lease_s: float, on_silent: Callable[[], None]) -> None:
        self.lease_s = lease_s
        self._lease = Lease(self._outside, lease_s, on_silent)

    def heard(self) -> None:
        """Is called when its connection has said something."""
        self._heard_s = self._outside.now()
        if self._lease is not None:
            self._lease.heard()

    def heard_on_lifeline(self) -> None:
        """A lifeline alone may speak for a while only: an interpreter that is held for longer is stuck."""
        if self._lease is not None and self._outside.now() < self._heard_s + INTERPRETER_HELD_S:
            self._lease.heard()

    def takes(self, hang_up: Callable[[str], None]) -> None:
        """Takes its lifeline. `hang_up`: ends the lifeline, for this reason."""
        self._hang_up = hang_up

    def loses_lifeline(self) -> None:
        """The lifeline has ended."""
        self._hang_up = None

    def end(self) -> None:
        if self._hang_up is not None:
            self._hang_up("has the lifeline of a host that is gone")  # which it loses by this
        if self._lease is not None:
            self._lease.stop()
            self._lease = None  # it leads back here
