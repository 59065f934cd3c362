"""These functions make the kinds of schedules, for p devices and m microbatches."""

from jax_passing.errors import UsageError
from jax_passing.pipelining.schedule import Kind, Schedule, Task


def gpipe(devices: int, microbatches: int) -> Schedule:
    """All forward passes come first, then all backward passes (Huang et al., GPipe, NeurIPS 2019).

    With equal stages the bubble is (p - 1) / m, and each device keeps the activations of m forward passes.
    """
    tasks = [
        tuple(Task(kind, stage, number) for kind in (Kind.FORWARD, Kind.BACKWARD) for number in range(microbatches))
        for stage in range(devices)
    ]
    return Schedule("gpipe", devices, microbatches, tuple(tasks))


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    """Each backward pass comes as soon as it can (Narayanan et al., PipeDream, SOSP 2019, with a flush at the end).

    The bubble is GPipe's, (p - 1) / m, but a device keeps the activations of at most as many forward passes as there
    are stages from its own to the last.
    """
    tasks = []
    for stage in range(devices):
        own = []
        for number in range(microbatches):
            own += _ahead(stage, number, devices, microbatches)
            own.append(Task(Kind.BACKWARD, stage, number))
        tasks.append(tuple(own))
    return Schedule("1f1b", devices, microbatches, tuple(tasks))


def zb_h1(devices: int, microbatches: int) -> Schedule:
    """1F1B has backward passes in two parts here (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, 3.1).

    Device i puts the gradients of parameters off by i backward passes. So the gradients of inputs, which other devices
    wait for, come a third earlier, and the work that was put off fills the end. If all parts take equally long, and
    there are at least p microbatches, the bubble is (p - 1) / 3m. No device keeps the activations of more than p
    forward passes, as many as the first device under 1F1B.
    """
    tasks = []
    for stage in range(devices):
        own = []
        for number in range(microbatches):
            own += _ahead(stage, number, devices, microbatches)
            own.append(Task(Kind.INPUTS, stage, number))
            if number >= stage:
                own.append(Task(Kind.WEIGHTS, stage, number - stage))
        own += [Task(Kind.WEIGHTS, stage, number) for number in range(max(0, microbatches - stage), microbatches)]
        tasks.append(tuple(own))
    return Schedule("zb-h1", devices, microbatches, tuple(tasks))


def _ahead(stage: int, number: int, devices: int, microbatches: int) -> list[Task]:
    """Returns the forward passes of 1F1B between one backward pass and the next, while there are any: one, but before
    the first as many as there are stages from this one to the last."""
    ahead = devices - stage
    first = 0 if number == 0 else number + ahead - 1
    return [Task(Kind.FORWARD, stage, each) for each in range(first, min(microbatches, number + ahead))]


def interleaved(devices: int, microbatches: int, stages_per_device: int) -> Schedule:
    """Several stages are on each device (Narayanan et al., Megatron-LM on GPU clusters, SC 2021, 2.2).

    Stage s is on device s mod p, so a device gets to its first forward pass sooner. With v stages on each device the
    bubble is (p - 1) / (v m), at the price of v times the messages, and of more activations that are kept. Microbatches
    go through the pipeline in groups of p.

    Raises UsageError if the microbatches aren't a multiple of the devices.
    """
    if microbatches % devices:
        raise UsageError(
            f"The interleaved schedule needs a multiple of {devices} microbatches, since there are {devices} devices; "
            f"{microbatches} isn't one."
        )
    count = microbatches * stages_per_device
    tasks = []
    for device in range(devices):
        # The order of execution is p microbatches through the device's first stage, the same through its second, ...
        order = [
            (chunk * devices + device, group + number)
            for group in range(0, microbatches, devices)
            for chunk in range(stages_per_device)
            for number in range(devices)
        ]
        backwards = [
            ((stages_per_device - 1 - chunk) * devices + device, group + number)
            for group in range(0, microbatches, devices)
            for chunk in range(stages_per_device)
            for number in range(devices)
        ]
        # The last device begins with backward passes as soon as the first microbatch is through its last stage. For
        # each device before it, the gradient comes one hop later, and its own forward pass was one hop earlier.
        ahead = min(count, 2 * (devices - 1 - device) + (stages_per_device - 1) * devices + 1)
        own = [Task(Kind.FORWARD, *one) for one in order[:ahead]]
        for number, one in enumerate(backwards):
            own.append(Task(Kind.BACKWARD, *one))
            if ahead + number < count:
                own.append(Task(Kind.FORWARD, *order[ahead + number]))
        tasks.append(tuple(own))
    return Schedule("interleaved", devices * stages_per_device, microbatches, tuple(tasks))
