"""Writes the table of models that `jax-passing simulate --model` computes with, from those of examples/models.

    python benchmarks/training/buckets_of_models.py        # rewrites jax_passing/predict/models.json

The partitioner's cost model counts the floating-point operations of each run of operations between two positions at
which the model may be cut: a layer. Runs without parameters count to the layer before. A parameter's gradient is final
after the backward pass of the first layer that uses it. Counts are for one row: an image, or a sequence of 1024 tokens.
"""

import json
import math
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
from benchmark_models import Trained, alexnet, gpt2, gpt2_of, image_model, resnet50, vgg16

import jax_passing
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES, Leaf, make_buckets
from jax_passing.partitioning.stages import Slicer

TABLE = Path(__file__).parents[2] / "jax_passing/predict/models.json"
ROWS = 8  # of the batch that is counted: what doesn't depend on the batch hardly counts


def counted(trained: Trained) -> dict[str, Any]:
    params, batch = jax.eval_shape(trained.init), jax.eval_shape(lambda: trained.batch(ROWS, 0))
    plan = jax_passing.partition(trained.loss, params, batch, stages=2, max_live=8, flops_per_s=1.0)
    chain, model = plan._chain, plan.stages[0]._model
    slicer = Slicer(model, [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)])
    legal = [int(cut) for cut in np.flatnonzero(chain.may_cut) if 0 < cut < len(chain.compute_s)]
    layers: list[tuple[float, list[int]]] = []
    seen: set[int] = set()
    for first, last in slicer.runs(legal):
        flops = float(chain.compute_s[first:last].sum()) / ROWS
        leaves = [piece.leaf for piece in slicer.stage(first, last).pieces if piece.leaf not in seen]
        seen.update(leaves)
        own = [math.prod(plan.params_shapes[leaf].shape) for leaf in leaves]
        if layers and not own:
            layers[-1] = layers[-1][0] + flops, layers[-1][1]
        else:
            layers.append((flops, own))
    forward_share = round(sum(one.forward_s for one in plan.facts) / sum(one.compute_s for one in plan.facts), 4)
    return {"flops": sum(round(flops) for flops, _ in layers), "buckets": buckets_of(forward_share, layers)}


def buckets_of(forward_share: float, layers: list[tuple[float, list[int]]]) -> list[tuple[float, int]]:
    """Groups the gradients as `jax_passing.overlap` does: from the last layer on.

    Returns of each bucket the share of the step's computation after which all of it is final, and its bytes.
    """
    total = sum(flops for flops, _ in layers)
    done = forward_share * total
    leaves, final = [], []
    for number, (flops, own) in reversed(list(enumerate(layers))):
        done += (1 - forward_share) * flops
        leaves += [Leaf("float32", 4 * elements, f"{number} {index}") for index, elements in enumerate(own)]
        final += [done / total] * len(own)
    return [
        (round(max(final[index] for index in indices), 6), sum(leaves[index].size_bytes for index in indices))
        for indices in make_buckets(leaves, DEFAULT_BUCKET_BYTES)
    ]


def main() -> None:
    models = {
        "gpt2-small": gpt2_of(gpt2.SMALL, ROWS),
        "gpt2-xl": gpt2_of(gpt2.XL, ROWS),
        "alexnet": image_model(alexnet, alexnet.AlexNet(alexnet.FULL), ROWS),
        "vgg16": image_model(vgg16, vgg16.VGG16(vgg16.FULL), ROWS),
        "resnet50": image_model(resnet50, resnet50.ResNet50(resnet50.FULL), ROWS),
    }
    table: dict[str, Any] = {"bucket_bytes": DEFAULT_BUCKET_BYTES}
    for name, trained in models.items():
        table[name] = counted(trained)
        size_bytes = sum(size for _, size in table[name]["buckets"])
        print(f"{name}: {size_bytes // 4:,} parameters, {table[name]['flops'] / 1e9:.1f} GFLOP a row")
    TABLE.write_text(textwrap.fill(json.dumps(table), 120, break_on_hyphens=False) + "\n")


if __name__ == "__main__":
    main()
