"""ResNet50 in Flax: He et al., Deep Residual Learning for Image Recognition (CVPR 2016).

The stride of a block is that of its 3 x 3 convolution, as everybody does since, and not of the first one.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class Config:
    """These are the sizes of a ResNet.

    Attributes:
      image: height, width and channels.
      blocks: how many there are of each size of image.
      width: features of the first convolution.
      has_large_images: the first convolution and a pooling halve the image twice.
    """

    image: tuple[int, int, int]
    blocks: tuple[int, ...]
    width: int
    classes: int
    has_large_images: bool


FULL = Config(image=(224, 224, 3), blocks=(3, 4, 6, 3), width=64, classes=1000, has_large_images=True)
SMALL = Config(image=(8, 8, 1), blocks=(2, 2, 2), width=8, classes=10, has_large_images=False)  # scikit-learn's digits


class Block(nn.Module):
    features: int
    stride: int
    train: bool

    @nn.compact
    def __call__(self, x):
        def convolve(x, features, kernel, stride=1):
            convolution = nn.Conv(features, (kernel, kernel), stride, padding=kernel // 2, use_bias=False)
            return nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(convolution(x))

        y = nn.relu(convolve(x, self.features, 1))
        y = nn.relu(convolve(y, self.features, 3, self.stride))
        y = convolve(y, 4 * self.features, 1)
        if x.shape != y.shape:
            x = convolve(x, 4 * self.features, 1, self.stride)
        return nn.relu(x + y)


class ResNet50(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, train=False):  # f32[n, height, width, channels] -> f32[n, classes]
        config = self.config
        kernel, stride = (7, 2) if config.has_large_images else (3, 1)
        x = nn.Conv(config.width, (kernel, kernel), stride, padding=kernel // 2, use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        if config.has_large_images:
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for size, count in enumerate(config.blocks):
            for number in range(count):
                stride = 2 if size > 0 and number == 0 else 1
                x = Block(config.width * 2**size, stride, train)(x)
        return nn.Dense(config.classes)(x.mean(axis=(1, 2)))


def loss_of(model):
    """`loss(variables, batch) -> (loss, aux)`, as jax.value_and_grad(..., has_aux=True) takes it.

    The variables are "params" and "batch_stats", whose gradient is zero: their new values are in aux. The batch has
    "images", f32[n, height, width, channels], and "labels", i32[n].
    """

    def loss(variables, batch):
        labels = batch["labels"]
        logits, updated = model.apply(variables, batch["images"], train=True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == labels), **updated}

    return loss
