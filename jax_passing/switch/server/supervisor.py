"""A supervisor that speaks systemd's protocol hears how the switch is: that it serves, lives, reloads, ends.

It gives the address of its socket in NOTIFY_SOCKET (sd_notify(3)). Without that variable nothing is said to anybody.
"""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

SOCKET, WATCHDOG_US, WATCHDOG_PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class Supervisor:
    """Tells the supervisor of this process, if there is one, how the switch is."""

    def __init__(self, environment: Mapping[str, str] = os.environ):
        address = environment.get(SOCKET, "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # "@" is an abstract one
        self._environment = environment

    @property
    def beat_s(self) -> float | None:
        """Returns how often it wants to hear `lives`, seconds; None: never. systemd ends a process that is late, and
        asks for twice as many signs as it needs."""
        wanted, process = (self._environment.get(name, "") for name in (WATCHDOG_US, WATCHDOG_PROCESS))
        if not self._address or not wanted.isdecimal() or process not in ("", str(os.getpid())):
            return None
        return int(wanted) / 2e6 or None

    def serves(self, status: str) -> None:
        """Says that hosts may come. `status`: a line for people."""
        self._tell(f"READY=1\nSTATUS={status}")

    def lives(self) -> None:
        self._tell("WATCHDOG=1")

    def reloads(self) -> None:
        """Says that settings are read again, until `serves`."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def ends(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, text: str) -> None:
        """Sends a datagram, and never waits: a supervisor that doesn't read is no reason to stop adding up."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ours:
                ours.sendto(text.encode(), self._address)
