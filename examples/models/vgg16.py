"""VGG16 in Flax: Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (2014)."""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class Config:
    """These are the sizes of a VGG.

    Attributes:
      image: height, width and channels.
      features: of the convolutions between two poolings.
      hidden: width of the dense layers.
      dropout: the share of dense activations that training drops.
    """

    image: tuple[int, int, int]
    features: tuple[tuple[int, ...], ...]
    hidden: int
    classes: int
    dropout: float = 0.5


FULL = Config(
    image=(224, 224, 3),
    features=((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
    hidden=4096,
    classes=1000,
)
SMALL = Config(  # for scikit-learn's digits, which fit three poolings
    image=(8, 8, 1),
    features=((16, 16, 16, 16), (32, 32, 32, 32), (64, 64, 64, 64, 64)),
    hidden=128,
    classes=10,
)


class VGG16(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, train=False):  # f32[n, height, width, channels] -> f32[n, classes]
        config = self.config
        for block in config.features:
            for features in block:
                x = nn.relu(nn.Conv(features, (3, 3), kernel_init=nn.initializers.he_normal())(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(config.hidden, kernel_init=nn.initializers.he_normal())(x))
            x = nn.Dropout(config.dropout, deterministic=not train)(x)
        return nn.Dense(config.classes)(x)


def loss_of(model):
    """`loss(params, batch) -> (loss, aux)`, as jax.value_and_grad(..., has_aux=True) takes it.

    The batch has "images", f32[n, height, width, channels], and "labels", i32[n]. Activations are dropped if it has a
    "key".
    """

    def loss(params, batch):
        labels, key = batch["labels"], batch.get("key")
        rngs = None if key is None else {"dropout": key}
        logits = model.apply({"params": params}, batch["images"], train=key is not None, rngs=rngs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == labels)}

    return loss
