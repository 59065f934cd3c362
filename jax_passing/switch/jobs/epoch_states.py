"""An epoch has these states, and these events lead from one to the next. docs/internals/architecture.md draws this
table."""

import enum


class EpochState(enum.Enum):
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
    (EpochState.FORMING, Event.ALL_HERE): EpochState.PREPARING,
    (EpochState.FORMING, Event.LAST_GONE): EpochState.OVER,
    (EpochState.FORMING, Event.REFUSED): EpochState.OVER,
    (EpochState.FORMING, Event.FAILED): EpochState.OVER,
    (EpochState.PREPARING, Event.GONE): EpochState.FORMING,
    (EpochState.PREPARING, Event.ALL_PREPARED): EpochState.RUNNING,
    (EpochState.PREPARING, Event.REFUSED): EpochState.OVER,
    (EpochState.PREPARING, Event.FAILED): EpochState.OVER,
    (EpochState.RUNNING, Event.ALL_LEFT): EpochState.OVER,
    (EpochState.RUNNING, Event.FAILED): EpochState.OVER,
}
