"""GPipe does all forward passes, then all backward passes (Huang et al., GPipe, NeurIPS 2019).

With p equal stages and m microbatches the bubble is (p - 1) / m, and each device keeps the activations of m forward
passes.
"""

from jax_passing.pipelining.schedule import Kind, Schedule, Task


def gpipe(devices: int, microbatches: int) -> Schedule:
    tasks = [
        tuple(Task(kind, stage, number) for kind in (Kind.FORWARD, Kind.BACKWARD) for number in range(microbatches))
        for stage in range(devices)
    ]
    return Schedule("gpipe", devices, microbatches, tuple(tasks))
