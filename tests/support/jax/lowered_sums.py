"""Sums in the text of a lowered module, and programs that have some."""

import json
import re

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.naming.sum_spec import values_of
from jax_passing.collective.runtime.compiled_text import _unescaped

LAYERS = 6


def mapped(f, sizes=(8,), axis_names=("d",), **options):
    mesh = jax.make_mesh(sizes, axis_names, axis_types=(AxisType.Auto,) * len(sizes))
    options = {"in_specs": P(axis_names[0]), "out_specs": P(), "check_vma": False, **options}
    return jax.shard_map(f, mesh=mesh, **options)


def lowered(f, *arguments, platform="cuda"):
    return jax.jit(f).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def specs(text):
    """The spec of each sum, by name, in the order of the text."""
    return [spec for _, _, spec, _ in calls(text, "passing_psum")]


def spec_of(config):
    """The values of the texts among these attributes of a call that describe its sum; empty if there are none."""
    found = re.findall(r'\b(?:spec|gpu) = "((?:[^"\\]|\\.)*)"', config)
    return values_of("".join(_unescaped(text) for text in found))


def calls(text, target="passing_psum"):
    """(results, operands, values of its spec, aliases) of each custom call, in the order of the text."""
    pattern = re.compile(rf"%(\w+)(?::\d+)? = stablehlo\.custom_call @{target}\((.*?)\) \{{(.*)\}} :")
    return [
        (
            result,
            [operand for operand in operands.split(", ") if operand],
            spec_of(config),
            re.findall(r"output_tuple_indices = \[(\d*)\], operand_index = (\d+)", config),
        )
        for result, operands, config in pattern.findall(text)
    ]


def names(text):
    """Returns what hosts must have alike in each sum, in the order of the sums' names."""
    alike = ("program", "identity", "dtype", "op", "leaf_elements", "member_count", "world_size", "flat", "devices")
    return sorted(json.dumps({name: spec[name] for name in alike}) for spec in specs(text))


def numbers(text):
    return [int(number) for number in text.split(",")]


def layers(work=0, *, backwards=False):
    """A step of data parallelism with a bucket for each layer, and `work` of its own beside that. `backwards`: the
    parameters are listed from the last layer to the first."""

    def step(params, x):
        def loss(params):
            y = x
            for w in params[:: -1 if backwards else 1]:
                y = jnp.tanh(y @ w)
            return jnp.sum(y)

        grads = jax.grad(loss)(jax.lax.pcast(params, "d", to="varying"))
        for _ in range(work):
            x = jnp.sin(x)
        sums = jax_passing.psum(grads, "d", bucket_bytes=128 * 128 * 4)
        return [w - g for w, g in zip(params, sums, strict=True)], x

    params = [jnp.ones((128, 128)) for _ in range(LAYERS)]
    return mapped(step, in_specs=(P(), P("d")), out_specs=(P(), P("d")), check_vma=True), params, jnp.ones((8, 128))
