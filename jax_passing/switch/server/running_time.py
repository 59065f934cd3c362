"""A switch keeps time by a clock that doesn't go on while the switch itself stands still."""

from collections.abc import Callable

from jax_passing.protocol.outside import Conversation, Outside, Timer

LATE_S = 1.0  # the watch asks ten times as often


class RunningTime:
    """This is the world (`outside.py`), but its clock leaves out the time in which this process stood still
    (`scontrol suspend`, SIGSTOP, a paused virtual machine): no host could be heard then, so none is late by it.

    It tells by how rarely it is asked. So somebody, the watch, has to ask it all the time.
    """

    def __init__(self, outside: Outside):
        self._outside = outside
        self._asked_s = outside.now()
        self._left_out_s = 0.0

    def now(self) -> float:
        now = self._outside.now()
        passed_s, self._asked_s = now - self._asked_s, now
        if passed_s > LATE_S:
            self._left_out_s += passed_s
        return now - self._left_out_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._outside.call_later(delay_s, callback)

    def random_bits(self, count: int) -> int:
        return self._outside.random_bits(count)

    def connect(
        self, address: tuple[str, int], timeout_s: float, conversation: Conversation, job: str, key: bytes | None
    ) -> None:
        self._outside.connect(address, timeout_s, conversation, job, key)
