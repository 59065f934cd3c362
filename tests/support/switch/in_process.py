"""Switches and hosts in the process of the tests, without JAX."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from jax_passing.config import Settings, parse_switches
from jax_passing.host.control.context import Events, HostContext
from jax_passing.host.control.loop import Loop
from jax_passing.host.control.meeting import Meeting, Met
from jax_passing.host.control.membership import MemberJoined, MemberNotJoined, Membership
from jax_passing.switch.server.serve import serve
from jax_passing.switch.server.settings import SwitchSettings
from support.switch.serving_thread import ServingThread

JOB = "test"


class SwitchThread(ServingThread):
    """A switch with the software data plane on a thread."""

    def __init__(self, **changes):
        self._settings = SwitchSettings(**{"listen": ("127.0.0.1", 0), **changes})
        super().__init__()

    async def _serve(self):
        self.counters = await serve(self._settings, self._stop, lambda running: self._on_listening(running.address))


def settings_of(running, rank, world_size=2, **changes):
    defaults = {"switch": parse_switches(running.address), "job": JOB, "axis_name": ("d",)}
    deadlines = {"deadline_s": 60.0, "join_deadline_s": 60.0}
    return Settings(rank=rank, world_size=world_size, **{**defaults, **deadlines, **changes})


class Member:
    """A host's membership without a session, for another thread than its loop's. Made by joining.

    Attributes:
      membership: to be used in `call`.
    """

    def __init__(self, settings, device_count=0, key=None, hosts_key=None):
        self._all_left, self._loop = threading.Event(), Loop()
        context = HostContext(self._loop, settings, Events(self._on), key, device_count, hosts_key=hosts_key)
        try:
            self.membership = self._loop.wait(lambda *outcomes: self._join(context, *outcomes))
        except BaseException:
            self._loop.close()
            raise

    def _join(self, context, joined, not_joined):
        self._joined, self._not_joined = joined, not_joined
        Membership(context)

    def _on(self, event):
        match event:
            case MemberJoined(membership):
                self._joined(membership)
            case MemberNotJoined(_, error):
                self._not_joined(error)
            case _:
                self._all_left.set()

    def call(self, function, *arguments):
        return self._loop.call(function, *arguments)

    @property
    def failure(self):
        return self.membership.failure

    @property
    def welcomes(self):
        return [shard.welcome for shard in self.membership.shards]

    def fail(self, failure):
        self.call(self.membership.fail, failure)

    def send(self, shard, message):
        self.call(self.membership.shards[shard].send, message)

    def lose_switch(self, shard=0):
        """Its connection breaks."""
        self.call(self.membership.shards[shard].calls.contact.connection.give_up)

    def leave(self):
        self.call(self.membership.leave)

    def await_others(self, until):
        self._all_left.wait(until - time.monotonic())

    def close(self):
        self.call(self.membership.close)
        self._loop.close()


class Guest:
    """A host that meets others, without a session."""

    def __init__(self, settings, instance, key=None, device_count=0):
        self._loop = Loop()
        self._loop.instance = instance
        self._meeting = Meeting(HostContext(self._loop, settings, Events(self._on), key, device_count))

    def meet(self, step=None, within_s=20.0):
        """Returns where they have met, and what they have agreed on."""
        return self._loop.wait(lambda *outcomes: self._meet(step, within_s, *outcomes))

    def _on(self, event):
        if isinstance(event, Met):
            self._met((event.point, event.met))
        else:
            self._not_met(event.error)

    def _meet(self, step, within_s, met, not_met):
        self._met, self._not_met = met, not_met
        self._meeting.meet(range(len(self._meeting.points)), step, (), time.monotonic() + within_s)

    def close(self):
        self._loop.call(self._meeting.close)
        self._loop.close()


def leave(several):
    """Lets all of these members of a job leave it in good order."""
    for member in several:
        member.leave()
    for member in several:
        member.await_others(time.monotonic() + 20)
        member.close()


def members(running, world_size=2, key=None, **changes):
    with ThreadPoolExecutor(world_size) as pool:
        settings = [settings_of(running, rank, world_size, **changes) for rank in range(world_size)]
        return list(pool.map(lambda one: Member(one, key=key), settings))


def until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()
