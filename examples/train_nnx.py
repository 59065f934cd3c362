"""Trains a flax.nnx model with BatchNorm and dropout on several hosts.

    jax-passing run --hosts 2 --devices-per-host 2 examples/train_nnx.py

Each device normalises its own rows of the batch, as is usual.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import jax_passing

STEPS, BATCH = 150, 128  # BATCH: over all hosts
SEED = 0  # the same on all hosts


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, use_fast_variance=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.2)
        self.last = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images, rngs=None):  # f32[n, 64] -> f32[n, 10]
        x = nnx.relu(self.norm(self.first(images)))
        return self.last(self.dropout(x, rngs=rngs))


def loss_of(model, images, labels, key):
    logits = model(images, nnx.Rngs(dropout=key))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_step(mesh):
    @nnx.jit
    @nnx.shard_map(mesh=mesh, in_specs=(P(), P(), P("d"), P("d"), P()), out_specs=P())
    def step(model, optimizer, images, labels, number):
        # With the same key all devices would drop the same places of their rows: each gets a key of its own.
        key = jax.random.fold_in(jax.random.key(SEED), number)
        key = jax.random.fold_in(key, jax_passing.axis_index("d"))
        loss, gradients = jax_passing.overlap(loss_of, "d")(model, images, labels, key)
        optimizer.update(model, gradients)
        nnx.update(model, jax_passing.pmean(nnx.state(model, nnx.BatchStat), "d"))
        return loss

    return step


def main():
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target
    held_out = slice(1500, None)

    with jax_passing.init(axis_name="d") as session:
        model = Classifier(nnx.Rngs(SEED))  # the same parameters on all hosts, from the same key
        model.train()
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        step = make_step(jax.sharding.Mesh(jax.local_devices(), ("d",)))
        random = np.random.default_rng(SEED)  # all hosts draw the same batches, and each takes its own rows
        mine = slice(session.rank * BATCH // session.world_size, (session.rank + 1) * BATCH // session.world_size)
        for number in range(STEPS):
            rows = random.choice(1500, BATCH, replace=False)[mine]
            loss = step(model, optimizer, images[rows], labels[rows], jnp.int32(number))
        model.eval()  # dropout passes everything, and BatchNorm takes the running statistics
        right = np.argmax(model(images[held_out]), axis=-1) == labels[held_out]
        print(f"rank {session.rank}: loss {float(loss):.3f}, accuracy {100 * right.mean():.1f}%")


if __name__ == "__main__":
    main()
