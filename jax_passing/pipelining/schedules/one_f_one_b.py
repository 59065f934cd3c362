"""1F1B: a backward pass as soon as there is one (Narayanan et al., PipeDream, SOSP 2019, with a flush at the end).

The bubble is GPipe's, (p - 1) / m, but a device keeps at most as many forward passes as there are stages from its own
to the end.
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
