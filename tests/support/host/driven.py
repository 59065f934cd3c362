"""A host's ranks, for whose switches the test speaks: messages go in, messages and events come out."""

from jax_passing.config import Settings
from jax_passing.host.control.context import Events, HostContext
from jax_passing.host.control.ranks import Ranks
from jax_passing.protocol import control_messages as messages
from support.moved_outside import MovedOutside

HELLO = messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "s")
WELCOME = messages.Welcome(1, 7, 0, 256, 0, 360)


class HostOutside(MovedOutside):
    """A HostOutside (`host/control/outside.py`) that carries no packets."""

    instance, host_name, port, sums_started = "this process", "this machine", 1000, 0

    def open_socket(self, host, port, planes):
        return self

    def start_transport(self, links, events, **settings):
        return self

    def leave_group(self): ...

    def fail(self, kind, message): ...

    def failure(self):
        return None

    def stats(self):
        return {"sums_started": self.sums_started}

    def close(self): ...


class DrivenHost:
    """A host whose switches are the test.

    Attributes:
      told: what `receive` has returned, and outcomes of sets.
    """

    def __init__(self, rank=1, world_size=3, device_count=2, met=None, started_as=None, **changes):
        self.outside, self.told = HostOutside(), []
        given = {"switch": (("sw", 7171),), "job": "a", "rank": rank, "world_size": world_size, **changes}
        context = HostContext(self.outside, Settings(**given), Events(self._on), None, device_count, met, started_as)
        self.ranks = Ranks(context)

    def _on(self, event):
        if (told := self.ranks.receive(event)) is not None:
            self.told.append(told)

    def switch(self, index, *says):
        """The switch at the other end of this call says so. Returns what it was told since."""
        call = self.outside.calls[index]
        if says and says[0] is HELLO:
            call.opens()
        call.says(*says)
        told, call.sent = call.sent, []
        return [message for message in told if message != messages.Heartbeat()]

    def joins(self, index):
        (join,) = self.switch(index, HELLO)
        self.switch(index, WELCOME)
        return join

    def set_of(self, *hosts):
        self.ranks.join_hosts(hosts, self.told.append, self.told.append)
