"""A path carries as many lanes as the kernel says, if the switch sends a probe of that length back."""

import logging

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import LANES_AT_MTU_1500, LANES_MAX
from jax_passing.protocol.path_probe import ROUNDS_S, TICK_S, PathProbe
from support.moved_outside import MovedOutside

NONCE = 7
PATIENCE_S = sum(ROUNDS_S) + 10 * TICK_S


class Path:
    """A socket whose path carries packets of `carries` lanes, and loses the first `loses` of them."""

    def __init__(self, fit=LANES_MAX, carries=LANES_MAX, loses=0):
        self.fit, self.carries, self.loses = fit, carries, loses
        self.probes = []

    def lanes_that_fit(self):
        if self.fit is None:
            raise OSError("no route")
        return self.fit

    def probe_path(self, nonce, lanes):
        assert nonce == NONCE
        self.probes.append(lanes)

    def hears_path(self, nonce, lanes):
        return nonce == NONCE and len(self.probes) > self.loses and lanes <= self.carries


def found(path, lanes=LANES_MAX, for_s=PATIENCE_S):
    """Returns what is known after `for_s`."""
    hello = messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "s", lanes=lanes, path_nonce=NONCE)
    known, outside = [], MovedOutside()
    probe = PathProbe(outside, path, hello, "sw:7171", known.append)
    outside.pass_by(for_s, TICK_S)
    probe.stop()
    assert outside.timers == []
    return known


@pytest.mark.parametrize(
    ("path", "lanes", "expected"),
    [
        (Path(), LANES_MAX, LANES_MAX),
        (Path(fit=16366), LANES_MAX, LANES_MAX),  # of the loopback interface
        (Path(fit=2210), LANES_MAX, 2210),
        (Path(), 1000, 1000),
        (Path(), 65535, LANES_MAX),  # of a switch of another version
        (Path(loses=len(ROUNDS_S) - 1), LANES_MAX, LANES_MAX),
    ],
)
def test_what_comes_back(path, lanes, expected):
    assert found(path, lanes) == [expected]


@pytest.mark.parametrize("path", [Path(fit=361), Path(fit=719), Path(fit=300), Path(fit=None)])
def test_no_probe_where_little_fits(path):
    assert found(path, for_s=0) == [LANES_AT_MTU_1500]
    assert path.probes == []


def test_no_probe_of_a_switch_that_takes_no_more():
    path = Path(fit=None)
    assert found(path, LANES_AT_MTU_1500, for_s=0) == [LANES_AT_MTU_1500]
    assert path.probes == []


def test_a_path_that_loses_long_packets(caplog):
    path = Path(carries=2000)
    with caplog.at_level(logging.WARNING, logger="jax_passing"):
        assert found(path, for_s=1.0) == []
        assert found(path) == [LANES_AT_MTU_1500]
    assert "packets of 2232 lanes don't come back from the switch at sw:7171" in caplog.text
    assert path.probes[-len(ROUNDS_S) :] == [LANES_MAX] * len(ROUNDS_S)
