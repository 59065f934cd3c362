"""Writes the table of layers that `jax-passing simulate --model` computes with, from those of examples/models.

    python benchmarks/training/layers_of_models.py        # rewrites jax_passing/scaling/models.json

The partitioner's cost model counts the floating-point operations of each run of operations between two positions at
which the model may be cut. Runs without parameters count to the layer before. A parameter's gradient is final after the
backward pass of the first layer that uses it. Counts are for one row: an image, or a sequence of 1024 tokens.
"""

import json
import math
from pathlib import Path

import jax
import numpy as np
from benchmark_models import Trained, alexnet, gpt2, gpt2_of, image_model, resnet50, vgg16

import jax_passing
from jax_passing.partitioning.stages import Slicer

TABLE = Path(__file__).parents[2] / "jax_passing/scaling/models.json"
ROWS = 8  # of the batch that is counted: what doesn't depend on the batch hardly counts


def layers_of(trained: Trained) -> dict[str, object]:
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
    forward = sum(facts.forward_s for facts in plan.facts) / sum(facts.compute_s for facts in plan.facts)
    counted = [{"flops": round(flops), "gradients": own} for flops, own in layers]
    return {"forward_share": round(forward, 4), "layers": counted}


def main() -> None:
    models = {
        "gpt2-small": gpt2_of(gpt2.SMALL, ROWS),
        "gpt2-xl": gpt2_of(gpt2.XL, ROWS),
        "alexnet": image_model(alexnet, alexnet.AlexNet(alexnet.FULL), ROWS),
        "vgg16": image_model(vgg16, vgg16.VGG16(vgg16.FULL), ROWS),
        "resnet50": image_model(resnet50, resnet50.ResNet50(resnet50.FULL), ROWS),
    }
    table = {}
    for name, trained in models.items():
        table[name] = layers_of(trained)
        elements = sum(sum(layer["gradients"]) for layer in table[name]["layers"])
        flops = sum(layer["flops"] for layer in table[name]["layers"])
        print(f"{name}: {len(table[name]['layers'])} layers, {elements:,} parameters, {flops / 1e9:.1f} GFLOP a row")
    text = json.dumps(table, separators=(",", ":")).replace('{"flops"', '\n{"flops"').replace('"]}', '"]}\n')
    TABLE.write_text(text + "\n")


if __name__ == "__main__":
    main()
