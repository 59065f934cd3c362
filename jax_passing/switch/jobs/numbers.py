"""Packets name jobs and their epochs by numbers."""

from collections import Counter
from collections.abc import Container

from jax_passing.protocol.outside import Outside
from jax_passing.switch.jobs.admission import RefusalError

ID_MAX = 65535  # jobs and epochs are 16 bits on the wire; 0 is no job and no epoch


class Numbers:
    """Allocates pairs of job and epoch numbers that never repeat in a switch's life.

    By that pair alone a packet on its way, and a slot that nobody clears, are known as an earlier epoch's. Jobs'
    numbers, and the epochs of each, begin anywhere: who isn't in a job can't guess them, and a packet that was on its
    way when the switch was restarted has others.
    """

    def __init__(self, outside: Outside):
        self._outside = outside
        self._job_last = outside.random_bits(16)
        self._epoch_first: dict[int, int] = {}  # by the job's number, counted from 0
        self._epoch_count: Counter[int] = Counter()

    def new_job(self, taken: Container[int]) -> int:
        """Returns a number that isn't taken. Raises RefusalError if there is none."""
        for _ in range(ID_MAX):
            self._job_last = self._job_last % ID_MAX + 1
            if self._job_last not in taken and not self.is_used_up(self._job_last):
                return self._job_last
        raise RefusalError("This switch has used all numbers of jobs and epochs, four thousand million: restart it.")

    def is_used_up(self, job: int) -> bool:
        """Says whether the job of this number has had all epochs."""
        return self._epoch_count[job] >= ID_MAX

    def new_epoch(self, job: int) -> int:
        first = self._epoch_first.setdefault(job, self._outside.random_bits(16))
        number = (first + self._epoch_count[job]) % ID_MAX + 1
        self._epoch_count[job] += 1
        return number
