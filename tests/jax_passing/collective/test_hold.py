"""Sums of several buckets: the compiler puts their uses behind the backward pass, and values and rules stay."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.primitives.hold import all_ready, hold, ready

LAYERS = 6


def target_lines(lines, target):
    """Numbers of the lines that call it, without those that only make the program larger."""
    return [
        i for i, line in enumerate(lines) if f'custom_call_target="{target}"' in line and "custom-call()" not in line
    ]


def bucket_a_layer(grads, axis):
    return jax_passing.psum(grads, axis, bucket_bytes=128 * 128 * 4)


def arguments():
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    params = [jax.random.normal(key, (128, 128)) / 8 for key in keys[1:]]
    return params, jax.random.normal(keys[0], (8, 128))


def step(psum):
    """A training step over two devices that sums its gradients with `psum`."""

    def update(params, x):
        def loss(params):
            y = x
            for w in params:
                y = jnp.tanh(y @ w)
            return jnp.sum(y)

        grads = jax.grad(loss)(jax.lax.pcast(params, "d", to="varying"))
        return [w - g for w, g in zip(params, psum(grads, "d"), strict=True)]

    mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))
    return jax.shard_map(update, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())


def compiled():
    return jax.jit(step(bucket_a_layer), donate_argnums=0)


def test_no_sum_is_used_before_the_backward_pass_is_over(session) -> None:
    text = compiled().lower(*arguments()).compile().as_text()
    lines = text[text.index("ENTRY") :].splitlines()  # in the order that decides which buffers may be shared
    psums = target_lines(lines, "passing_psum")
    calls = target_lines(lines, "passing_hold")
    dots = [i for i, line in enumerate(lines) if re.search(r" dot\(", line)]
    (gate,) = (i for i in calls if re.match(r" *%\S+ = s32\[\] ", lines[i]))
    holds = [i for i in calls if i > gate]
    assert len(psums) == LAYERS
    assert len(holds) == LAYERS
    assert max(dots) < gate
    assert sum(p > min(dots) for p in psums) == LAYERS
    assert psums[0] < max(dots)  # the first sum starts while the backward pass goes on
    sums = [line.split()[0] for line in lines if re.search(r" get-tuple-element\(%passing_psum\S*\), index=1", line)]
    assert len(sums) == LAYERS
    for name in sums:
        first_use = next(i for i, line in enumerate(lines) if f"{name}," in line or f"{name})" in line)
        assert first_use > max(dots), lines[first_use]
    # Gradients are summed in place. Parameters are updated in place: nothing needs their old values any more.
    assert not [line for line in lines if re.search(r"f32\[128,128\]\S* copy\(", line)]


def test_a_sums_tokens_are_held_as_long_as_its_results(session) -> None:
    # Else XLA lays a layer's next temporary array over a token, and the layer waits for the sum that writes it.
    text = jax.jit(step(bucket_a_layer)).lower(*arguments()).as_text()
    sums = re.findall(r"%(\d+):2 = stablehlo.custom_call @passing_psum\(%\w+, (%\w+),", text)
    calls = [call.split(", ") for call in re.findall(r"custom_call @passing_hold\((%.+?)\)", text)]
    held = {call[0]: call for call in calls}
    assert len(sums) == LAYERS
    for number, before in sums:
        assert held[f"%{number}#1"][-2:] == [before, f"%{number}#0"]


def test_a_program_grows_with_the_number_of_buckets(session) -> None:
    """Not with its square, as if each bucket's hold took something of each other bucket."""

    def size(buckets):
        """Returns how often the traced program, and those lowered for CPU and for GPU, name a value."""
        mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))
        total = jax.shard_map(
            lambda xs: jax_passing.psum(xs, "d", bucket_bytes=1 << 17), mesh=mesh, in_specs=P("d"), out_specs=P()
        )
        traced = jax.jit(total).trace([jax.ShapeDtypeStruct((1 << 16,), np.float32)] * buckets)
        texts = [str(traced.jaxpr), *(traced.lower(lowering_platforms=(each,)).as_text() for each in ("cpu", "cuda"))]
        return [len(re.findall(r"\b[a-z]+:|%\w+", text)) for text in texts]

    for ten, twenty in zip(size(10), size(20), strict=True):
        assert ten < twenty < 2.1 * ten


def test_a_step_gives_what_lax_psum_gives(session) -> None:
    params, x = arguments()
    right = jax.jit(step(jax.lax.psum))(params, x)
    for ours, theirs in zip(compiled()(params, x), right, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f])
def test_hold_is_the_identity_of_its_first_arguments(transform) -> None:
    def held(a, b, last):
        last, token = ready(last)
        return [*hold([a, b], all_ready([token, token])), last]

    a, b, last = transform(held)(jnp.arange(3.0), jnp.int32(4), jnp.ones((2, 2)))
    np.testing.assert_array_equal(a, [0.0, 1.0, 2.0])
    assert b == 4
    np.testing.assert_array_equal(last, jnp.ones((2, 2)))
    transposed = jax.linear_transpose(lambda a, last: hold([a], ready(last)[1]), jnp.ones(3), jnp.ones(2))
    a, last = transposed([jnp.array([1.0, 2.0, 3.0])])
    np.testing.assert_array_equal(a, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(last, [0.0, 0.0])
