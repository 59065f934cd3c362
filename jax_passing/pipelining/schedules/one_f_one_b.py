"""1F1B does each backward pass as soon as it can (Narayanan et al., PipeDream, SOSP 2019, with a flush at the end).

The bubble is GPipe's, (p - 1) / m, but a device keeps the activations of at most as many forward passes as there are
stages from its own to the last.
"""

from jax_passing.pipelining.schedule import Kind, Schedule, Task


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    tasks = []
    for stage in range(devices):
        ahead = min(microbatches, devices - stage)
        own = [Task(Kind.FORWARD, stage, number) for number in range(ahead)]
        for number in range(microbatches):
            own.append(Task(Kind.BACKWARD, stage, number))
            if ahead + number < microbatches:
                own.append(Task(Kind.FORWARD, stage, ahead + number))
        tasks.append(tuple(own))
    return Schedule("1f1b", devices, microbatches, tuple(tasks))
