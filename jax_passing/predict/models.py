"""The papers' models: what a step of training computes, and which gradients it sums when.

benchmarks/training/buckets_of_models.py has counted them in examples/models.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from jax_passing.errors import ConfigError

TABLE = Path(__file__).with_name("models.json")
NAMES = ("gpt2-small", "gpt2-xl", "alexnet", "vgg16", "resnet50")
SEQUENCES = ("gpt2-small", "gpt2-xl")  # a row is a sequence of 1024 tokens, not an image


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
    """A model needs `flops` operations for both passes of one row, and sums its gradients in buckets, the last layers'
    first, as `jax_passing.overlap` does with buckets of the default size."""

    name: str
    flops: float
    buckets: tuple[Bucket, ...]

    @property
    def gradient_bytes(self) -> int:
        return sum(bucket.size_bytes for bucket in self.buckets)


@functools.cache
def load(name: str) -> Model:
    """Returns a model. Raises ConfigError if there is none of this name."""
    if name not in NAMES:
        raise ConfigError(f"There is no model {name!r}. Take one of {', '.join(NAMES)}.")
    counted = json.loads(TABLE.read_text())[name]
    return Model(name, counted["flops"], tuple(Bucket(*bucket) for bucket in counted["buckets"]))
