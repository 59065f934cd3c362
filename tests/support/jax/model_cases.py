"""The models of examples/models with what their losses take: shapes only, or real data."""

import functools
import sysconfig
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from models import alexnet, gpt2, resnet50, vgg16

FULL = {
    "gpt2-small": gpt2.GPT2(gpt2.SMALL),
    "gpt2-medium": gpt2.GPT2(gpt2.MEDIUM),
    "gpt2-large": gpt2.GPT2(gpt2.LARGE),
    "gpt2-xl": gpt2.GPT2(gpt2.XL),
    "alexnet": alexnet.AlexNet(alexnet.FULL),
    "vgg16": vgg16.VGG16(vgg16.FULL),
    "resnet50": resnet50.ResNet50(resnet50.FULL),
}
SMALL = {
    "gpt2": gpt2.GPT2(gpt2.TINY),
    "gpt2-scan": gpt2.GPT2(replace(gpt2.TINY, scan=True, remat=True)),
    "alexnet": alexnet.AlexNet(alexnet.SMALL),
    "vgg16": vgg16.VGG16(vgg16.SMALL),
    "resnet50": resnet50.ResNet50(resnet50.SMALL),
}
_LOSSES = {
    gpt2.GPT2: gpt2.loss_of,
    alexnet.AlexNet: alexnet.loss_of,
    vgg16.VGG16: vgg16.loss_of,
    resnet50.ResNet50: resnet50.loss_of,
}


def loss_of(model):
    return _LOSSES[type(model)](model)


def _init(model, key, batch):
    variables = model.init(key, batch["tokens"][:, :-1] if "tokens" in batch else batch["images"])
    return variables if "batch_stats" in variables else variables["params"]


def init(model, key, batch):
    """Initialises the model: returns the first argument of its loss."""
    # It runs once: optimising it would take longer than it runs.
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(_init, static_argnums=0, compiler_options=options)(model, key, batch)


def shapes_of(model, size, has_key=False):
    """Returns the shapes of the loss's arguments, for a batch of this size; with a key it drops activations."""
    if isinstance(model, gpt2.GPT2):
        batch = {"tokens": jax.ShapeDtypeStruct((size, model.config.context + 1), jnp.int32)}
    else:
        images = jax.ShapeDtypeStruct((size, *model.config.image), jnp.float32)
        batch = {"images": images, "labels": jax.ShapeDtypeStruct((size,), jnp.int32)}
    key = jax.eval_shape(jax.random.key, 0)
    variables = jax.eval_shape(functools.partial(_init, model), key, batch)
    return variables, {**batch, "key": key} if has_key else batch


@functools.cache
def text():
    """Source text of this Python's standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


@functools.cache
def digits():
    """Scikit-learn's, 8 x 8 pixels: images and labels."""
    data = load_digits()
    return (data.images[..., np.newaxis] / 16).astype(np.float32), data.target.astype(np.int32)


def batches_of(model, size, count, seed=0):
    """Random ones of real data."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        if isinstance(model, gpt2.GPT2):
            length = model.config.context + 1
            starts = rng.integers(0, len(text()) - length, size)
            yield {"tokens": text()[starts[:, np.newaxis] + np.arange(length)].astype(np.int32)}
        else:
            images, labels = digits()
            chosen = rng.choice(len(labels), size, replace=False)
            yield {"images": images[chosen], "labels": labels[chosen]}
