"""Interleaved 1F1B puts several stages on each device (Narayanan et al., Efficient Large-Scale Language Model Training
on GPU Clusters Using Megatron-LM, SC 2021, 2.2).

Stage s is on device s mod p, so a device gets to its first forward pass sooner. With v stages on each device the bubble
is (p - 1) / (v m), at the price of v times the messages, and of more activations that are kept. Microbatches go through
the pipeline in groups of p, hence their number must be a multiple of p.
"""

from jax_passing.errors import PipelineError
from jax_passing.pipelining.schedule import Kind, Schedule, Task


def interleaved(devices: int, microbatches: int, stages_per_device: int) -> Schedule:
    """Raises PipelineError if the microbatches aren't a multiple of the devices."""
    if microbatches % devices:
        raise PipelineError(
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
