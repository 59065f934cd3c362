"""The clock of a switch leaves out the time in which the switch stood still."""

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.server.running_time import RunningTime
from support.switch.control import StillOutside, scenario, until


def test_time_in_which_nobody_asks_is_left_out():
    outside, seconds = StillOutside(), [1000.0]
    outside.now = lambda: seconds[0]
    clock = RunningTime(outside)
    began_s = clock.now()
    for passed_s, counted_s in ((0.1, 0.1), (0.9, 1.0), (3600.0, 1.0), (0.5, 1.5), (1.5, 1.5), (0.2, 1.7)):
        seconds[0] += passed_s
        assert abs(clock.now() - began_s - counted_s) < 1e-6


@scenario()
async def test_who_waits_to_join_isnt_refused_for_time_in_which_the_switch_stood_still(switch):
    """All of a job's processes are suspended, and its switch with them."""
    first = await switch.join(0, join_deadline_s=5.0)
    await switch.has(0)
    true, passed_s = switch.server.now, 3600.0
    switch.server.now = lambda: true() + passed_s
    second = await switch.join(1, join_deadline_s=5.0)
    for host in (first, second):
        assert isinstance(await host.receive(), messages.Welcome)
    await until(lambda: len(switch.plane.jobs.epochs()) == 1)
