"""Switches and hosts in the process of the tests, without JAX."""

import time
from concurrent.futures import ThreadPoolExecutor

from jax_passing.config import Settings, parse_switches
from jax_passing.host.membership import Membership
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
        self.counters = await serve(self._settings, self._stop, lambda address, _: self._on_listening(address))


def settings_of(running, rank, world_size=2, **changes):
    defaults = {"switch": parse_switches(running.address), "job": JOB, "axis_name": ("d",)}
    deadlines = {"deadline_s": 60.0, "join_deadline_s": 60.0}
    return Settings(rank=rank, world_size=world_size, **{**defaults, **deadlines, **changes})


def members(running, world_size=2, key=None, **changes):
    with ThreadPoolExecutor(world_size) as pool:
        several = list(
            pool.map(
                lambda rank: Membership(settings_of(running, rank, world_size, **changes), key=key),
                range(world_size),
            )
        )
    for member in several:
        member.start()
    return several


def until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()
