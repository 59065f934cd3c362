"""The layers of the papers' models: what each computes, and which gradients it has.

benchmarks/training/layers_of_models.py has counted them in examples/models.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES, Leaf, make_buckets
from jax_passing.errors import ConfigError

TABLE = Path(__file__).with_name("models.json")
NAMES = ("gpt2-small", "gpt2-xl", "alexnet", "vgg16", "resnet50")
SEQUENCES = ("gpt2-small", "gpt2-xl")  # a row is a sequence of 1024 tokens, not an image


@dataclass(frozen=True)
class Layer:
    """A layer of a model.

    Attributes:
      flops: of both passes, for one row.
      gradients: elements of each gradient that is final after this layer's backward pass.
    """

    flops: float
    gradients: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """Gradients that are summed together.

    Attributes:
      ready: the share of the step's computation after which all of them are final.
      size_bytes: their size.
    """

    ready: float
    size_bytes: int


@dataclass(frozen=True)
class Model:
    """A model has layers, and spends `forward_share` of its computation in the forward pass."""

    name: str
    forward_share: float
    layers: tuple[Layer, ...]

    @property
    def flops(self) -> float:
        return sum(layer.flops for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        return sum(4 * sum(layer.gradients) for layer in self.layers)

    def buckets(self, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> list[Bucket]:
        """Groups the gradients as `jax_passing.overlap` does: from the last layer on."""
        leaves, final = [], []
        done = self.forward_share * self.flops
        for number, layer in reversed(list(enumerate(self.layers))):
            done += (1 - self.forward_share) * layer.flops
            for index, elements in enumerate(layer.gradients):
                leaves.append(Leaf("float32", 4 * elements, f"{number} {index}"))
                final.append(done / self.flops)
        return [
            Bucket(max(final[index] for index in indices), sum(leaves[index].size_bytes for index in indices))
            for indices in make_buckets(leaves, bucket_bytes)
        ]


@functools.cache
def load(name: str) -> Model:
    """Returns a model. Raises ConfigError if there is none of this name."""
    if name not in NAMES:
        raise ConfigError(f"There is no model {name!r}. Take one of {', '.join(NAMES)}.")
    counted = json.loads(TABLE.read_text())[name]
    layers = tuple(Layer(layer["flops"], tuple(layer["gradients"])) for layer in counted["layers"])
    return Model(name, counted["forward_share"], layers)
