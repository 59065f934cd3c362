"""A session joins with the hosts that it has met, and tries again as long as others are in the way."""

from jax_passing.config import Settings
from jax_passing.host.control.contact import RETRY_S
from jax_passing.host.control.joining import Joined, Joining
from jax_passing.protocol import control_messages as messages
from support.host.driven import HELLO, WELCOME, HostOutside

TAKEN = messages.Refused("JoinError", "Rank 0 of job 'a' was taken. Call jax_passing.init again.")


class Host:
    """An elastic session of rank 2, for whose switch the test speaks."""

    def __init__(self, survivors):
        self.outside, self.told, self._survivors = HostOutside(), [], survivors
        settings = Settings(switch=(("sw", 7171),), job="a", rank=2, world_size=3, world_size_min=1)
        self.joining = Joining(self.outside, settings)
        self.joining.join(4, (), self.told.append, self.told.append)
        self.seat = self.outside.calls[0].opens()
        self.seat.says(HELLO)

    def meets(self):
        """Returns what it says to meet the others, who then have met. It calls the switch to join."""
        if messages.Heartbeat() in self.seat.sent:
            self.seat.says(messages.Heartbeat())  # it asks whether the switch lives before it relies on its seat
        (meet,) = [message for message in self.seat.sent if isinstance(message, messages.Meet)]
        self.seat.sent.clear()
        self.seat.says(messages.Met(5, 0, 2, self._survivors, 4))
        return meet

    def is_told(self, *answers):
        """The switch answers its join."""
        call = self.outside.calls[-1].opens()
        call.says(HELLO, *answers)
        return next(message for message in call.sent if isinstance(message, messages.Join))


def test_it_says_what_must_be_alike_and_what_it_was_started_as():
    host = Host(survivors=2)
    meet = host.meets()
    assert meet.started_as == 2
    assert meet.alike["wire_dtype"] == "full"
    assert host.is_told(WELCOME).started_as == 2
    assert isinstance(host.told[0], Joined)


def test_a_host_that_runs_the_job_tries_again_where_others_are_in_the_way():
    host = Host(survivors=2)
    host.meets()
    host.is_told(TAKEN)
    assert host.told == []
    host.outside.pass_by(RETRY_S)
    host.meets()
    host.is_told(WELCOME)
    assert isinstance(host.told[0], Joined)


def test_at_its_deadline_it_may_be_called_again():
    host = Host(survivors=2)
    host.meets()
    host.outside.now_s += 60.0
    host.is_told(TAKEN)
    (error,) = host.told
    assert type(error).__name__ == "TooFewHostsError"
    assert str(error) == "Rank 0 of job 'a' was taken. Call session.rejoin."


def test_a_newcomer_is_refused_at_once():
    host = Host(survivors=0)
    host.meets()
    host.is_told(TAKEN)
    (error,) = host.told
    assert type(error).__name__ == "JoinError"
