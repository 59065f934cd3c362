"""Trains a Flax classifier of handwritten digits on several hosts; every step's gradients meet in the switch.

    jax-passing run --hosts 2 --devices-per-host 2 examples/train_digits.py

Run by itself (python examples/train_digits.py) it is the same program in a world of one host.
"""

import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jax_passing

STEPS, BATCH = 500, 128  # BATCH: over all hosts
ACCURACY = 0.97  # on digits not trained on


class Classifier(nn.Module):
    """Smooth on purpose: relu and max_pool decide near ties by the last bit, and runs that agreed so far part there."""

    @nn.compact
    def __call__(self, images):  # f32[n, 8, 8, 1] -> f32[n, 10]
        x = nn.tanh(nn.Conv(32, (3, 3))(images))
        x = nn.tanh(nn.Conv(64, (3, 3), strides=(2, 2))(x))
        return nn.Dense(10)(x.reshape(len(x), -1))


MODEL = Classifier()
LEARNING_RATE = optax.cosine_decay_schedule(0.3, STEPS)
OPTIMIZER = optax.sgd(LEARNING_RATE)


def loss_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(MODEL.apply(params, images), labels).mean()


def update(params, state, grads):
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def make_steps(mesh):
    """A training step of this host, and the check that every device of every host holds the same parameters."""

    def train(params, state, images, labels):
        # Means over all devices of all hosts. Of each layer's gradients the sum travels beside the backward pass.
        loss, grads = jax_passing.overlap(loss_of, "d")(params, images, labels)
        return *update(params, state, grads), loss

    def same_bits(params):
        # Halves of 16 bits add up exactly. If each device finds its own bits to be the mean, all are alike.
        bits = [jax.lax.bitcast_convert_type(leaf, jnp.uint16).astype(jnp.int32) for leaf in jax.tree.leaves(params)]
        bits = jax.lax.pcast(bits, "d", to="varying")
        device_count = jax_passing.axis_size("d")
        sums = jax_passing.psum(bits, "d")
        same = [jnp.all(total == device_count * own) for total, own in zip(sums, bits, strict=True)]
        return jnp.all(jnp.stack(same))[None]

    here, split = P(), P("d")
    train = jax.shard_map(train, mesh=mesh, in_specs=(here, here, split, split), out_specs=here)
    same_bits = jax.shard_map(same_bits, mesh=mesh, in_specs=here, out_specs=split)
    return jax.jit(train), jax.jit(same_bits)


def batches(images, labels):
    """The same random batches on every host."""
    rng = np.random.default_rng(seed=0)
    for _ in range(STEPS):
        chosen = rng.choice(len(labels), BATCH, replace=False)
        yield images[chosen], labels[chosen]


def train_alone(params, images, labels):
    """The whole batch on one device, without jax_passing: (parameters, largest gradient element of all steps)."""

    @jax.jit
    def step(params, state, x, y):
        grads = jax.grad(loss_of)(params, x, y)
        return *update(params, state, grads), jnp.max(jnp.stack([jnp.abs(g).max() for g in jax.tree.leaves(grads)]))

    state, largest = OPTIMIZER.init(params), []
    for x, y in batches(images, labels):
        params, state, gradient = step(params, state, x, y)
        largest.append(gradient)
    return params, float(max(largest))


def main(session):
    digits = load_digits()
    pixels = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    images, test_images, labels, test_labels = train_test_split(
        pixels, digits.target, test_size=0.2, random_state=2, stratify=digits.target
    )

    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    device_count = session.world_size * mesh.size
    if BATCH % device_count:
        sys.exit(f"{device_count} devices can't share a batch of {BATCH} evenly")
    share = BATCH // session.world_size
    mine = slice(session.rank * share, (session.rank + 1) * share)

    step, same_bits = make_steps(mesh)
    params = start = MODEL.init(jax.random.key(0), images[:1])
    state = OPTIMIZER.init(params)
    began = time.perf_counter()
    show = {"description": "training", "total": STEPS, "disable": session.rank != 0}
    for number, (x, y) in enumerate(track(batches(images, labels), **show)):
        params, state, loss = step(params, state, x[mine], y[mine])
        loss.block_until_ready()  # the bar shows steps that are done
        if number == 0:
            began = time.perf_counter()  # compiled
    seconds = time.perf_counter() - began

    alike = bool(np.all(same_bits(params)))
    if not alike:
        print(f"FAILED: the parameters of rank {session.rank} differ from the mean of all hosts")
    if session.rank != 0:
        return alike

    accuracy = np.mean(np.argmax(MODEL.apply(params, test_images), axis=1) == test_labels)
    reference, largest = train_alone(start, images, labels)
    difference = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), params, reference)))
    # Adding BATCH numbers in another order changes a gradient by at most about BATCH x 2^-24 of its largest element;
    # fixed point changes less. A step brings learning rate times that into the parameters, and as long as training
    # converges a step doesn't enlarge the differences that are there: they add up.
    bound = sum(map(LEARNING_RATE, range(STEPS))) * BATCH * 2.0**-24 * largest
    stats = session.stats()
    sent, received, summed = (stats[name] / 1e6 for name in ("bytes_sent", "bytes_received", "tensor_bytes"))  # MB
    print(f"accuracy    {accuracy:.2%} of the test images (at least {ACCURACY:.0%})")
    print(f"same bits   {'yes' if alike else 'NO'}, on {device_count} devices of {session.world_size} hosts")
    print(f"reference   one process, whole batch: parameters within {difference:.1e} (bound {bound:.1e})")
    print(f"speed       {(STEPS - 1) / seconds:.0f} steps/s")
    print(f"moved       {sent:.1f} MB sent and {received:.1f} MB received by each host")
    print(f"goodput     {summed / seconds:.1f} MB/s of gradients, {stats['packets_resent']} resends")
    return alike and accuracy >= ACCURACY and difference <= bound


if __name__ == "__main__":
    with jax_passing.init(axis_name="d") as session:
        passed = main(session)
    sys.exit(0 if passed else 1)
