"""MTU and rate of made-up ways to a switch, and of loopback."""

import socket

import pytest

from jax_passing.doctor import route
from jax_passing.doctor.findings import State
from jax_passing.doctor.route import Route


@pytest.mark.parametrize(
    ("own", "mtu", "state", "lanes", "enough"),
    [
        ("10.0.0.2", 1500, State.GOOD, None, None),
        ("10.0.0.2", 1496, State.GOOD, None, None),
        ("10.0.0.2", 1495, State.WARNING, 359, 1496),
        ("10.0.0.2", 1400, State.WARNING, 336, 1496),  # docs/operate/clusters.md
        ("fd00::2", 1516, State.GOOD, None, None),
        ("fd00::2", 1500, State.WARNING, 356, 1516),
    ],
)
def test_mtu(own, mtu, state, lanes, enough):
    found = route.mtu(Route("s:1", "eth0", own, mtu, None), 360)
    assert found.state == state
    assert (lanes is None) == (found.remedy == "")
    assert lanes is None or f"to {enough} or more, or start the switch with --lanes-per-chunk {lanes} " in found.remedy
    if enough is not None:
        assert route.mtu(Route("s:1", "eth0", own, enough, None), 360).state == State.GOOD


def test_a_switch_with_shorter_packets_needs_less():
    way = Route("s:1", "eth0", "10.0.0.2", 1400, None)
    assert [route.mtu(way, lanes).state for lanes in (336, 337)] == [State.GOOD, State.WARNING]


@pytest.mark.parametrize(
    ("card", "setting", "state", "says"),
    [(25.0, None, State.GOOD, "25 Gbit/s, as the card"), (None, 10.0, State.GOOD, "10 Gbit/s, as link_gbit"),
     (None, None, State.WARNING, "doesn't tell")],
)  # fmt: skip
def test_rate(card, setting, state, says):
    found = route.rate(Route("s:1", "eth0", "10.0.0.2", 1500, card), setting)
    assert (found.state, says in found.reason) == (state, True), found


def test_loopback():
    way = route.to(("127.0.0.1", 7171))
    assert (way.interface, way.own, way.gbit) == ("lo", "127.0.0.1", None)
    assert route.mtu(way, 360).state == State.GOOD


def test_a_name_that_nobody_has():
    with pytest.raises(socket.gaierror):
        route.to(("no-such-host.invalid", 7171))
