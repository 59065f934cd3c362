"""ZB-H1 is 1F1B with backward passes in two parts (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, 3.1).

Device i puts the gradients of parameters off by i backward passes. So the gradients of inputs, which other devices wait
for, come a third earlier, and the work that was put off fills the end. If all parts take equally long, and there are at
least p microbatches, the bubble is (p - 1) / 3m. No device keeps the activations of more than p forward passes, as many
as the first device under 1F1B.
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
