"""Rank 0 comes to a barrier, the others never do. Each says what it is told, and how."""

import time

import jax_passing
from jax_passing.errors import PassingError


def main() -> None:
    session = jax_passing.init(axis_name="d", deadline_s=3)
    jax_passing.barrier()
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
