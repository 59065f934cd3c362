"""AlexNet in Flax: Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks (NIPS 2012).

The layers are those of Krizhevsky's One Weird Trick for Parallelizing Convolutional Neural Networks (2014): one tower
instead of one for each of two GPUs, and no normalisation.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class Config:
    """These are the sizes of an AlexNet.

    Attributes:
      image: height, width and channels.
      convolutions: of each its features, kernel, stride, and whether its output is pooled.
      hidden: width of the dense layers.
      dropout: the share of dense activations that training drops.
    """

    image: tuple[int, int, int]
    convolutions: tuple[tuple[int, int, int, bool], ...]
    hidden: int
    classes: int
    dropout: float = 0.5


FULL = Config(
    image=(224, 224, 3),
    convolutions=((64, 11, 4, True), (192, 5, 1, True), (384, 3, 1, False), (256, 3, 1, False), (256, 3, 1, True)),
    hidden=4096,
    classes=1000,
)
SMALL = Config(  # for scikit-learn's digits
    image=(8, 8, 1),
    convolutions=((16, 3, 1, True), (32, 3, 1, False), (64, 3, 1, False), (48, 3, 1, False), (48, 3, 1, True)),
    hidden=128,
    classes=10,
)


class AlexNet(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, train=False):  # f32[n, height, width, channels] -> f32[n, classes]
        config = self.config
        for features, kernel, stride, is_pooled in config.convolutions:
            convolution = nn.Conv(features, (kernel, kernel), stride, kernel_init=nn.initializers.he_normal())
            x = nn.relu(convolution(x))
            if is_pooled:
                x = nn.max_pool(x, (3, 3), strides=(2, 2))
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.Dropout(config.dropout, deterministic=not train)(x)
            x = nn.relu(nn.Dense(config.hidden, kernel_init=nn.initializers.he_normal())(x))
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
