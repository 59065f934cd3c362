"""Trains a Flax classifier of handwritten digits on several hosts; every step's gradients meet in the switch.

    jax-passing run --hosts 2 --devices-per-host 2 examples/train_digits.py

Run by itself (python examples/train_digits.py) it is the same program in a world of one host. Gradients travel in fewer
bytes with --wire-dtype int8, and hosts wait for each other less often with --pace diloco:20; --help has more. Rank 0
reports what that does to the accuracy.
"""

import argparse
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

import fewer_bytes
import jax_passing

STEPS, BATCH = 500, 128  # BATCH: over all hosts
ACCURACY = 0.97  # on digits not trained on
LOOK_STEPS = 10  # between looks at the accuracy


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


def update(params, state, grads, optimizer=OPTIMIZER):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def overlap(loss_of):
    """Is jax.value_and_grad over all devices of all hosts: loss and gradients are means."""
    return jax_passing.overlap(loss_of, "d")


def make_steps(mesh, value_and_grad=overlap, optimizer=OPTIMIZER, dtype="float32"):
    """A training step of this host, and the check that every device of every host holds the same parameters."""

    def train(params, state, images, labels):
        # Unless another way is chosen, overlap: each layer's gradients are summed beside the rest of the backward pass.
        loss, grads = value_and_grad(loss_of)(cast(params, dtype), images, labels)
        return *update(params, state, cast(grads, "float32"), optimizer), loss[None]

    def same_bits(params):
        # Halves of 16 bits add up exactly. If each device finds its own bits to be the mean, all are alike.
        bits = [jax.lax.bitcast_convert_type(leaf, jnp.uint16).astype(jnp.int32) for leaf in jax.tree.leaves(params)]
        bits = jax.lax.pcast(bits, "d", to="varying")
        device_count = jax_passing.axis_size("d")
        sums = jax_passing.psum(bits, "d")
        same = [jnp.all(total == device_count * own) for total, own in zip(sums, bits, strict=True)]
        return jnp.all(jnp.stack(same))[None]

    here, split = P(), P("d")
    train = jax.shard_map(train, mesh=mesh, in_specs=(here, here, split, split), out_specs=(here, here, split))
    same_bits = jax.shard_map(same_bits, mesh=mesh, in_specs=here, out_specs=split)
    return jax.jit(train), jax.jit(same_bits)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def batches(images, labels, seed):
    """The same random batches on every host."""
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        chosen = rng.choice(len(labels), BATCH, replace=False)
        yield images[chosen], labels[chosen]


def train_alone(params, images, labels, seed):
    """The whole batch on one device, without jax_passing: (parameters, largest gradient element of all steps)."""

    @jax.jit
    def step(params, state, x, y):
        grads = jax.grad(loss_of)(params, x, y)
        return *update(params, state, grads), jnp.max(jnp.stack([jnp.abs(g).max() for g in jax.tree.leaves(grads)]))

    state, largest = OPTIMIZER.init(params), []
    for x, y in batches(images, labels, seed):
        params, state, gradient = step(params, state, x, y)
        largest.append(gradient)
    return params, float(max(largest))


def main(session, given):
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

    value_and_grad, optimizer = fewer_bytes.choose(given, OPTIMIZER, "d")
    step, same_bits = make_steps(mesh, value_and_grad, optimizer, given.dtype)
    right = jax.jit(lambda params: jnp.mean(jnp.argmax(MODEL.apply(params, test_images), axis=1) == test_labels))
    params = start = MODEL.init(jax.random.key(given.seed), images[:1])
    state = optimizer.init(params)
    seconds, reached = 0.0, None
    show = {"description": "training", "total": STEPS, "disable": session.rank != 0}
    for number, (x, y) in enumerate(track(batches(images, labels, given.seed), **show), 1):
        began = time.perf_counter()
        params, state, loss = step(params, state, x[mine], y[mine])
        loss.block_until_ready()  # the bar shows steps that are done
        if number > 1:  # the first one compiles
            seconds += time.perf_counter() - began
        if session.rank == 0 and number % LOOK_STEPS == 0:
            accuracy = float(right(fewer_bytes.trained(given, params, state)))
            if reached is None and accuracy >= ACCURACY:
                reached = number, seconds
    state = fewer_bytes.end(state, mesh)
    stats = session.stats()

    params = fewer_bytes.trained(given, params, state)
    alike = bool(np.all(same_bits(params)))
    passed = alike or not fewer_bytes.promises_same_bits(given)
    if not passed:
        print(f"FAILED: the parameters of rank {session.rank} differ from the mean of all hosts")
    if session.rank != 0:
        return passed

    sent, received, summed = (stats[name] / 1e6 for name in ("bytes_sent", "bytes_received", "tensor_bytes"))  # MB
    first = "never reached" if reached is None else f"first after step {reached[0]}, {reached[1]:.2f} s of training"
    bits = "yes" if alike else "NO" if not passed else "no, nor are they promised"
    print(f"accuracy    {accuracy:.2%} of the test images (at least {ACCURACY:.0%}: {first})")
    print(f"same bits   {bits}, on {device_count} devices of {session.world_size} hosts")
    if fewer_bytes.overlaps(given) and (given.wire_dtype, given.dtype) == ("full", "float32"):
        passed &= check_reference(params, start, images, labels, given.seed)
    print(f"speed       {(STEPS - 1) / seconds:.0f} steps/s")
    print(f"moved       {sent:.1f} MB sent and {received:.1f} MB received by each host")
    print(f"goodput     {summed / seconds:.1f} MB/s of gradients, {stats['packets_resent']} resends")
    return passed and accuracy >= ACCURACY


def check_reference(params, start, images, labels, seed):
    reference, largest = train_alone(start, images, labels, seed)
    difference = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), params, reference)))
    # Adding BATCH numbers in another order changes a gradient by at most about BATCH x 2^-24 of its largest element;
    # fixed point changes less. A step brings learning rate times that into the parameters, and as long as training
    # converges a step doesn't enlarge the differences that are there: they add up.
    bound = sum(map(LEARNING_RATE, range(STEPS))) * BATCH * 2.0**-24 * largest
    print(f"reference   one process, whole batch: parameters within {difference:.1e} (bound {bound:.1e})")
    return difference <= bound


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    fewer_bytes.add_options(parser, dtype="float32")
    given = fewer_bytes.parse(parser)
    with jax_passing.init(axis_name="d", seed=given.seed) as session:
        passed = main(session, given)
    sys.exit(0 if passed else 1)
