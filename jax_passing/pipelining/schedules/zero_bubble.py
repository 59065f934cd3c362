"""ZB-H1: 1F1B whose backward passes are in two parts (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, 3.1).

The gradients of parameters wait, on device i for i further backward passes: so gradients of inputs, which other devices
wait for, come a third earlier, and the work that was put off fills the end. With parts that take equally long, and at
least p microbatches, the bubble is (p - 1) / 3m. No device keeps more forward passes than the first one under 1F1B: p.
"""

from jax_passing.pipelining.schedule import Kind, Schedule, Task


def zb_h1(devices: int, microbatches: int) -> Schedule:
    tasks = []
    for stage in range(devices):
        ahead = min(microbatches, devices - stage)
        own = [Task(Kind.FORWARD, stage, number) for number in range(ahead)]
        for number in range(microbatches):
            own.append(Task(Kind.INPUTS, stage, number))
            if number >= stage:
                own.append(Task(Kind.WEIGHTS, stage, number - stage))
            if ahead + number < microbatches:
                own.append(Task(Kind.FORWARD, stage, ahead + number))
        own += [Task(Kind.WEIGHTS, stage, number) for number in range(max(0, microbatches - stage), microbatches)]
        tasks.append(tuple(own))
    return Schedule("zb-h1", devices, microbatches, tuple(tasks))
