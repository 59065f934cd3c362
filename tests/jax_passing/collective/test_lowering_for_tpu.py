"""How sums are lowered for TPUs, by calls of Python, and what no platform does. No TPU is needed for that."""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing.collective.runtime.rank import rank
from jax_passing.errors import UsageError
from jax_passing.host import scope
from support.jax.on_mesh import on_mesh, values

pytestmark = pytest.mark.usefixtures("session")


def lowered_for(platform, f, *args, devices=2):
    return on_mesh(f, devices).trace(*args).lower(lowering_platforms=(platform,))


def test_lowering_for_tpu():
    def body(x):
        return jax_passing.psum((x, x.astype(jnp.bfloat16)), "d")

    text = lowered_for("tpu", body, jnp.ones((4, 3))).as_text()
    sends = re.findall(r'"stablehlo\.send"\(.*?\) <.*?> .*? : \((.*?), !stablehlo.token\)', text)
    receipts = re.findall(r'"stablehlo\.recv"\(.*?\) <.*?> .*? -> \((.*?), !stablehlo.token\)', text)
    where, number = "tensor<2xi32>", "tensor<i32>"
    # The position of the device for the number of the execution; then two sums, each of (group, member), that number, a
    # token and its leaf.
    assert sends == [number, *[where, number, number, "tensor<6xbf16>"], *[where, number, number, "tensor<6xf32>"]]
    assert receipts == [number, *["tensor<1xi32>", "tensor<6xbf16>"], *["tensor<1xi32>", "tensor<6xf32>"]]
    assert "custom_call @passing" not in text
    assert text.count("passing_stream") == 2


def test_calls_of_a_tpu_sum():
    """As its runtime would make them: with numpy arrays, on a thread for each device."""
    lowered = lowered_for("tpu", lambda x: jax_passing.psum(x, "d"), jnp.ones((4, 3)), devices=1)
    begin, add = lowered._lowering.compile_args["host_callbacks"]
    for execution in (1, 2):
        (number,) = begin(np.zeros((), np.int32))
        assert number == execution
        leaf = values(np.dtype(np.float32), (4, 3))
        leaf.flags.writeable = False
        token, total = add(np.zeros(2, np.int32), np.asarray(number), np.zeros((), np.int32), leaf.ravel())
        assert np.asarray(total).tobytes() == leaf.tobytes()
        assert np.asarray(token).shape == (1,)


def test_other_lowerings_for_tpu():
    text = jax.jit(rank).trace().lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("stablehlo.recv") == 1
    text = lowered_for("tpu", lambda x: jax_passing.psum(x[:0], "d"), jnp.ones((4, 3))).as_text()
    assert "stablehlo.recv" not in text
    with jax.enable_x64(True), pytest.raises(UsageError, match="TPU"):
        lowered_for("tpu", lambda x: jax_passing.psum(x, "d"), jnp.ones(4, np.float64))
    with jax.enable_x64(True):
        text = lowered_for("tpu", lambda x: jax_passing.psum(x, "d"), jnp.ones(4, np.int64)).as_text()
        assert "tensor<4xui32>" in text


def test_a_program_for_tpu_cannot_be_exported():
    program = on_mesh(lambda x: jax_passing.psum(x, "d"))
    with pytest.raises(NotImplementedError, match="can't be exported for tpu.*Lower and compile it where it runs"):
        jax.export.export(program, platforms=["tpu"])(jnp.ones((4, 3)))


@pytest.mark.parametrize("platforms", [("cpu", "tpu"), ("tpu", "cpu"), ("cpu", "cuda"), ("cpu", "rocm")])
@pytest.mark.parametrize("function", [lambda x: jax_passing.psum(x, "d"), lambda _: rank()[None]])
def test_several_platforms_at_once_are_refused(platforms, function):
    program = on_mesh(function)
    message = f"lowered for {' and '.join(platforms)} at once.*one platform at a time"
    with pytest.raises(NotImplementedError, match=message):
        jax.export.export(program, platforms=platforms)(jnp.ones((4, 3)))
    with pytest.raises(NotImplementedError, match=message):
        program.trace(jnp.ones((4, 3))).lower(lowering_platforms=platforms)


def test_other_platforms_are_refused():
    message = "can't sum over hosts on the platform 'rocm'. It can on cpu, cuda, tpu"
    with pytest.raises(NotImplementedError, match=message):
        lowered_for("rocm", lambda x: jax_passing.psum(x, "d"), jnp.ones((4, 3)))
    with pytest.raises(NotImplementedError, match=message):
        jax.jit(rank).trace().lower(lowering_platforms=("rocm",))


def test_visits_are_not_called():
    """The number of the execution tells of it, in sessions of several hosts, too."""

    def body(x):
        return jax.lax.cond(x.sum() > 0, lambda x: jax_passing.psum(x, "d"), lambda x: x, x)

    with scope.within(scope.of_thread()._replace(axis_names=("d",), world_size=2)):
        text = lowered_for("tpu", body, jnp.ones(4)).as_text()
    assert text.count("stablehlo.recv") == 3
    assert "passing_visit" not in text
