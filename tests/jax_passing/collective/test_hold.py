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


def test_sizes_and_buckets_of_all_kinds(session) -> None:
    mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))
    tree = {
        "empty": jnp.zeros((2, 0)),
        "one": jnp.ones(2),
        "int": jnp.arange(8).reshape(2, 4),
        "half": jnp.ones((2, 3)),
    }
    for buckets in (1, 1 << 20):

        def total(x, bucket_bytes=buckets):
            out = jax_passing.psum({**x, "half": x["half"].astype(jnp.bfloat16)}, "d", bucket_bytes=bucket_bytes)
            # The empty leaf stays inside: jaxlib 0.11.2 crashes on any program with an empty and another result.
            assert out.pop("empty").shape == (1, 0)
            return out

        out = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("d"), out_specs=P()))(tree)
        np.testing.assert_array_equal(out["int"], tree["int"].sum(0, keepdims=True))
        np.testing.assert_array_equal(out["one"], [2.0])
        np.testing.assert_array_equal(out["half"], np.full((1, 3), 2.0))


def test_derivatives_and_vmap(session, check_vma) -> None:
    mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))

    def total(xs):
        return jnp.stack([2 * x for x in jax_passing.psum([x[0] for x in xs], "d", bucket_bytes=4)])

    def mapped(f):
        return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=check_vma)

    def loss(xs):
        return jnp.sum(mapped(total)(xs) ** 2)

    xs = [jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]), jnp.array([5.0, 6.0])]
    _, tangent = jax.jvp(jax.jit(mapped(total)), (xs,), (xs,))
    np.testing.assert_array_equal(tangent, [6.0, 14.0, 22.0])
    native = jax.grad(lambda xs: sum((2 * x.sum()) ** 2 for x in xs))(xs)
    for ours, theirs in zip(jax.jit(jax.grad(loss))(xs), native, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    def batched(xs):
        return jax.vmap(lambda *xs: jnp.stack(jax_passing.psum(list(xs), "d", bucket_bytes=4)))(*(x[0] for x in xs))

    rows = [jnp.arange(6.0).reshape(2, 3) + i for i in range(3)]
    out = jax.jit(mapped(batched))(rows)
    np.testing.assert_array_equal(out, np.stack([row.sum(0) for row in rows], axis=1))


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
