"""A caller of a switch, for which the test speaks: what it reports, and what it says itself."""

import msgspec
import pytest

from jax_passing.protocol import caller
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import Alive, Caller, Greeted, Heard, KeyMismatchError, Lost
from support.moved_outside import MovedOutside

HELLO = messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "s", lease_s=6.0)
SECURED = msgspec.structs.replace(HELLO, secured=True)
FOREIGN = msgspec.structs.replace(HELLO, protocol_version=1)
KEY = b"k" * 32


class Bare(Caller):
    def decode(self, line):
        return messages.decode_from_switch(line)

    def worded(self, error):
        return error


class Telling(Bare):
    def to_foreign(self):
        return messages.Leave()


@pytest.fixture
def outside():
    return MovedOutside()


def called(outside, events, key=None, kind=Bare):
    return kind(outside, ("sw", 7171), events.append, job="a", key=key), outside.calls[-1].opens()


def lost(events):
    assert isinstance(events[-1], Lost)
    return events[-1].error


def test_what_a_switch_says_is_reported_after_its_greeting(outside):
    events = []
    one, call = called(outside, events)
    assert not one.has_greeted
    call.says(HELLO, messages.Bye())
    assert events == [Greeted(HELLO), Heard(messages.Bye())]
    assert (one.has_greeted, one.lease_s) == (True, 6.0)
    call.ends()
    assert str(lost(events)) == "the connection was closed"
    call.says(messages.Bye())
    assert len(events) == 3


def test_a_switch_that_says_nothing(outside):
    events = []
    called(outside, events)
    outside.pass_by(caller.CONNECT_TIMEOUT_S + 0.1)
    assert isinstance(lost(events), TimeoutError)
    assert not outside.timers


@pytest.mark.parametrize("lease_max_s", [2.0, float("inf")])
def test_a_switch_that_falls_silent(outside, lease_max_s):
    events, lease_s = [], min(HELLO.lease_s, lease_max_s)
    one, call = called(outside, events)
    call.says(HELLO)
    one.keep_alive(lease_max_s)
    for _ in range(5):
        outside.pass_by(0.9 * lease_s)
        call.says(messages.Heartbeat())
    assert events == [Greeted(HELLO)]
    assert one.has_answered
    assert set(call.sent) == {messages.Heartbeat()}
    outside.pass_by(lease_s + 1.0)
    assert str(lost(events)) == f"it was silent for {lease_s:g} s"
    assert not call.is_open
    assert not outside.timers


def test_a_switch_is_asked_for_a_sign_of_life(outside):
    events = []
    one, call = called(outside, events)
    call.says(HELLO)
    one.keep_alive()
    one.prove(1.0)
    outside.pass_by(0.9)
    call.says(messages.Heartbeat())
    outside.pass_by(3.0)
    assert events == [Greeted(HELLO), Alive()]
    one.prove(1.0)
    outside.pass_by(30.0, step_s=30.0)  # this process stands still: that counts for little
    assert events == [Greeted(HELLO), Alive()]
    outside.pass_by(1.0)
    assert str(lost(events)) == "it didn't answer within 1 s"
    assert not outside.timers


def test_one_that_hangs_up_hears_nothing_more(outside):
    events = []
    one, call = called(outside, events)
    call.says(HELLO)
    one.keep_alive()
    one.close()
    call.says(messages.Bye())
    call.ends(ConnectionError("reset"))
    outside.pass_by(60)
    assert events == [Greeted(HELLO)]
    assert one.send(messages.Leave())
    assert call.sent == []


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (b"HTTP/1.1 400\n", msgspec.DecodeError, "malformed"),
        (messages.Heartbeat(), msgspec.DecodeError, "no greeting"),
        (messages.Refused("JoinError", "I am full."), ConnectionRefusedError, "it says: I am full."),
    ],
)
@pytest.mark.parametrize("key", [None, KEY])
def test_something_else_than_a_greeting(outside, key, line, kind, text):
    events = []
    _, call = called(outside, events, key)
    call.says(line)
    assert isinstance(lost(events), kind)
    assert text in str(lost(events))


def test_a_message_that_makes_no_sense_to_who_hears_it(outside):
    events = []

    def report(event):
        events.append(event)
        if isinstance(event, Heard):
            raise msgspec.DecodeError("not now")

    Bare(outside, ("sw", 7171), report, job="a", key=None)
    outside.calls[-1].opens().says(HELLO, messages.Bye(), messages.Bye())
    assert [type(event) for event in events] == [Greeted, Heard, Lost]
    assert str(lost(events)) == "not now"


# Keys.


@pytest.mark.parametrize(("key", "hello"), [(None, SECURED), (KEY, HELLO)])
def test_only_one_end_has_a_key(outside, key, hello):
    events = []
    _, call = called(outside, events, key)
    call.says(hello)
    assert isinstance(lost(events), KeyMismatchError)
    assert lost(events).switch_has_key == hello.secured


def test_a_greeting_counts_once_the_switch_has_proved_its_key(outside):
    events = []
    one, call = called(outside, events, KEY)
    call.says(SECURED)  # in the clear, before it has heard the handshake
    assert events == []
    call.secures()
    call.says(SECURED)
    assert events == [Greeted(SECURED)]
    assert one.is_secured


# Other versions.


def test_a_switch_of_another_version_may_greet_whoever_lets_it(outside):
    events = []
    _, call = called(outside, events)
    call.says(FOREIGN)
    assert events == [Greeted(FOREIGN)]


@pytest.mark.parametrize("more", [{}, {"color": "red"}, {"data_port": {"first": 1}}], ids=str)
def test_a_switch_of_another_version_is_told_and_lost(outside, more):
    events = []
    _, call = called(outside, events, kind=Telling)
    call.says(msgspec.json.encode(msgspec.to_builtins(FOREIGN) | more))
    assert isinstance(lost(events), messages.ForeignVersionError)
    assert lost(events).version == 1
    assert call.sent == [messages.Leave()]


def test_nobody_believes_a_version_in_the_clear_where_there_is_a_key(outside):
    events = []
    _, call = called(outside, events, KEY)
    call.says(FOREIGN)
    assert isinstance(lost(events), messages.ForeignVersionError)
