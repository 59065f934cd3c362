"""Rank 0 writes a file, which all read; then it can't. It comes to a barrier to which the others never do. Each host
says what it is told, and how.

    alone_at_barrier.py FOLDER
"""

import sys
import time
from pathlib import Path

import numpy as np

import jax_passing
from jax_passing.errors import PassingError, RankZeroError


def write(file: Path, rank: int) -> None:
    assert rank == 0
    time.sleep(0.2)  # others would come too early
    np.save(file, np.arange(5))


def main() -> None:
    session = jax_passing.init(axis_name="d", deadline_s=3)
    file = Path(sys.argv[1]) / "state.npy"
    jax_passing.on_rank_zero(lambda: write(file, session.rank))
    assert np.load(file).tolist() == [0, 1, 2, 3, 4]
    try:
        jax_passing.on_rank_zero(lambda: write(file / "below", session.rank))
    except RankZeroError as error:
        print(f"heard {error}, because of {error.__cause__!r}")
    if session.rank == 0:
        try:
            jax_passing.barrier()
        except PassingError as error:
            print(f"raised {type(error).__name__}: {error}")
    else:
        for _ in range(6000):
            if session.error is not None:
                print(f"raised {type(session.error).__name__}: {session.error}")
                break
            time.sleep(0.01)
    session.shutdown()


main()
