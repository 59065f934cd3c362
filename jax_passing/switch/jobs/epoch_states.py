"""An epoch has these states, and these events lead from one to the next. docs/internals/architecture.md draws this
table."""

import enum


class State(enum.Enum):
    FORMING = "forming"  # some ranks are here
    PREPARING = "preparing"  # all are: slots are reserved, and members are asked whether they hear multicast
    RUNNING = "running"
    OVER = "over"


class Event(enum.Enum):
    ALL_HERE = "all ranks are here"
    GONE = "a rank or the parent is gone"
    LAST_GONE = "the last rank is gone"
    ALL_PREPARED = "all members are prepared"
    REFUSED = "all ranks are refused"
    ALL_LEFT = "all ranks have left"
    FAILED = "a host, a switch or the network failed"


# Nothing else can happen.
NEXT = {
    (State.FORMING, Event.ALL_HERE): State.PREPARING,
    (State.FORMING, Event.LAST_GONE): State.OVER,
    (State.FORMING, Event.REFUSED): State.OVER,
    (State.FORMING, Event.FAILED): State.OVER,
    (State.PREPARING, Event.GONE): State.FORMING,
    (State.PREPARING, Event.ALL_PREPARED): State.RUNNING,
    (State.PREPARING, Event.REFUSED): State.OVER,
    (State.PREPARING, Event.FAILED): State.OVER,
    (State.RUNNING, Event.ALL_LEFT): State.OVER,
    (State.RUNNING, Event.FAILED): State.OVER,
}
