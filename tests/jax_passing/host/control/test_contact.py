"""A host calls a switch again and again, and says at its deadline why none answered."""

import errno

from jax_passing.host.control.contact import RETRY_S, Redial
from jax_passing.protocol.caller import Lost
from support.host.driven import HostOutside


def test_a_call_that_the_deadline_cuts_short_hides_no_cause():
    told = []

    def on_event(event):
        assert isinstance(event, Lost)
        told.append(redial.failed(event.error))

    outside = HostOutside()
    redial = Redial(outside, ("sw", 7171), on_event, job="a", key=None, deadline_s=1.0)
    redial.call()
    outside.calls[-1].ends(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 7171)"))
    assert told == [None]
    outside.pass_by(RETRY_S)
    assert len(outside.calls) == 2
    outside.pass_by(1.0)  # nothing answers the second call until the deadline
    (_, problem) = told
    assert "at sw:7171 for 1.0 s (connection refused: nothing listens there). Is it running" in str(problem)


def test_a_switch_that_never_answers_timed_out():
    told = []
    outside = HostOutside()
    redial = Redial(
        outside, ("sw", 7171), lambda event: told.append(redial.failed(event.error)), job="a", key=None, deadline_s=1.0
    )
    redial.call()
    outside.pass_by(1.0)
    assert "for 1.0 s (timed out)" in str(told[0])
