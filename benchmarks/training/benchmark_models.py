"""The models that the benchmarks train: those of examples/models and an MLP, in sizes that two cores carry."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from models import alexnet, gpt2, resnet50, vgg16


class Mlp(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        for _ in range(self.depth):
            x = x + nn.relu(nn.Dense(self.width)(x)) / self.depth
        return x


@dataclass(frozen=True)
class Trained:
    """A model and its training data.

    Attributes:
      loss: `loss(params, batch)` returns a scalar.
      init: returns the first parameters.
      batch: `batch(rows, seed)` returns a batch of random numbers, made by numpy.
      rows: of a host's batch, unless somebody asks for others.
    """

    loss: Callable[[Any, Any], Any]
    init: Callable[[], Any]
    batch: Callable[[int, int], Any]
    rows: int


def _mlp(width: int, depth: int, rows: int) -> Trained:
    model = Mlp(width, depth)

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((model.apply({"params": params}, batch) - jnp.roll(batch, 1, axis=1)) ** 2)

    def noise(rows: int, seed: int) -> Any:
        return np.random.default_rng(seed).standard_normal((rows, width), np.float32)

    return Trained(loss, lambda: model.init(jax.random.key(0), jnp.zeros((1, width)))["params"], noise, rows)


def gpt2_of(config: gpt2.Config, rows: int) -> Trained:
    """Makes GPT-2 of this configuration, without dropout."""
    model = gpt2.GPT2(config)
    with_aux = gpt2.loss_of(model)

    def tokens(rows: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return {"tokens": rng.integers(0, config.vocabulary, (rows, config.context + 1), np.int32)}

    def init() -> Any:
        return model.init(jax.random.key(0), jnp.zeros((1, config.context), jnp.int32))["params"]

    return Trained(lambda params, batch: with_aux(params, batch)[0], init, tokens, rows)


def image_model(module: Any, model: nn.Module, rows: int) -> Trained:
    """`module`: the file of examples/models that the model is from. Without dropout."""
    config = model.config
    with_aux = module.loss_of(model)

    def variables() -> Any:
        return model.init(jax.random.key(0), jnp.zeros((1, *config.image)))

    def loss(params: Any, batch: Any) -> Any:
        if module is resnet50:  # its running means have no influence on gradients
            stats = jax.tree.map(lambda one: jnp.zeros(one.shape), jax.eval_shape(variables)["batch_stats"])
            params = {"params": params, "batch_stats": stats}
        return with_aux(params, batch)[0]

    def images(rows: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, config.classes, rows, np.int32)
        return {"images": rng.standard_normal((rows, *config.image), np.float32), "labels": labels}

    return Trained(loss, lambda: variables()["params"], images, rows)


def small(name: str) -> Trained:
    """Makes a model as deep as the full one (but GPT-2), so narrow that a step takes about a core-second."""
    match name:
        case "mlp":
            return _mlp(width=1024, depth=16, rows=1600)
        case "gpt2":
            return gpt2_of(gpt2.Config(layers=8, width=384, heads=6, vocabulary=2048, context=128), rows=4)
        case "alexnet":
            return image_model(alexnet, alexnet.AlexNet(replace(alexnet.FULL, hidden=1024)), rows=8)
        case "vgg16":
            halved = tuple(tuple(features // 2 for features in block) for block in vgg16.FULL.features)
            config = replace(vgg16.FULL, image=(64, 64, 3), features=halved, hidden=2048)
            return image_model(vgg16, vgg16.VGG16(config), rows=8)
        case "resnet50":
            config = replace(resnet50.FULL, image=(64, 64, 3), width=32)
            return image_model(resnet50, resnet50.ResNet50(config), rows=16)
    raise ValueError(name)


MODELS = ("mlp", "gpt2", "alexnet", "vgg16", "resnet50")
