"""GPipe: all forward passes, then all backward passes (Huang et al., GPipe, NeurIPS 2019).

With equal stages the bubble is (p - 1) / m for p stages and m microbatches, and each device keeps what m forward passes
have left.
"""

from jax_passing.pipelining.schedule import Kind, Schedule, Task


def gpipe(devices: int, microbatches: int) -> Schedule:
    tasks = [
        tuple(Task(kind, stage, number) for kind in (Kind.FORWARD, Kind.BACKWARD) for number in range(microbatches))
        for stage in range(devices)
    ]
    return Schedule("gpipe", devices, microbatches, tuple(tasks))
