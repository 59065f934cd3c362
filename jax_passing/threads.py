"""With how many threads a host sums, and a switch adds up: each host's thread has its part of each large sum, and each
of a switch's its part of each job's packets. The numbers are powers of two, so that parts are equal."""

import os
from typing import Annotated, Any

from jax_passing.settings_parser import parsed, power_of_two

THREADS_MAX = 16


def default_threads() -> int:
    """Returns the number for a host or a switch that isn't told: the greatest power of two that is at most a quarter of
    the cores that the process may use, and 8. So with fewer than 8 cores it is one."""
    quarter = len(os.sched_getaffinity(0)) // 4
    return min(8, 1 << max(0, quarter.bit_length() - 1))


def _read(value: Any) -> int:
    if (number := power_of_two(value)) > THREADS_MAX:
        raise ValueError
    return number


Threads = Annotated[int, parsed(_read, f"1, 2, 4, 8 or {THREADS_MAX}")]
