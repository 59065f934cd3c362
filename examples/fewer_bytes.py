"""Chooses, by options of the command line, how gradients travel to the other hosts, and how long a step waits for them.

docs/train/fewer_bytes.md says which to take when.
"""

import argparse

import jax
import optax
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.optax import compressed_psum, diloco, finish, local_sgd, powersgd, shared_params, stale

PACES = {"synchronous": 0, "stale": 1, "local-sgd": 10, "diloco": 20}  # with the number that is taken if none is given


def choose(given, optimizer, axis):
    """Returns a counterpart of jax.value_and_grad, and the optimizer that takes its gradients."""
    name, number, delay = given.pace
    match name:
        case "synchronous" if given.powersgd is not None:
            return own_gradients(axis), optax.chain(
                powersgd(axis, given.powersgd, wire_dtype=given.wire_dtype), optimizer
            )
        case "synchronous" if feeds_back(given):
            return own_gradients(axis), optax.chain(compressed_psum(axis, wire_dtype=given.wire_dtype), optimizer)
        case "synchronous":  # each layer's gradients travel as soon as the backward pass has them
            return lambda loss_of: jax_passing.overlap(loss_of, axis, wire_dtype=given.wire_dtype), optimizer
        case "stale":
            # Old gradients overshoot at a rate that is right for new ones, so steps are smaller.
            careful = optax.chain(optimizer, optax.scale(2 / (2 + number)))
            return own_gradients(axis), stale(careful, axis, number, wire_dtype=given.wire_dtype)
        case "local-sgd":
            return own_gradients(axis), local_sgd(optimizer, axis, every=number)
        case "diloco":
            # The published momentum is 0.9. Hosts meet too few times in these trainings for that to settle.
            outer = optax.sgd(0.7, momentum=0.5, nesterov=True)
            return own_gradients(axis), diloco(
                optimizer, outer, axis, every=number, delay=delay, wire_dtype=given.wire_dtype
            )


def own_gradients(axis):
    """Returns jax.value_and_grad of each device by itself, for optimizers that sum."""

    def value_and_grad(loss_of):
        def of_this_device(params, *batch):
            return jax.value_and_grad(loss_of)(jax.lax.pcast(params, axis, to="varying"), *batch)

        return of_this_device

    return value_and_grad


def trained(given, params, state):
    """Returns the parameters that are the result, from those of this host and the optimizer's state."""
    return shared_params(state, params) if given.pace[0] == "diloco" else params


def end(state, mesh, specs=P()):
    """Waits for the sums that are still on their way. `specs`: where the state lies."""
    return jax.jit(jax.shard_map(finish, mesh=mesh, in_specs=(specs,), out_specs=specs))(state)


def promises_same_bits(given):
    """Tells whether all hosts end with the same parameters: those of local SGD differ a little even after they met."""
    return given.pace[0] != "local-sgd"


def overlaps(given):
    """Tells whether gradients are summed during the backward pass, and not by the optimizer."""
    return given.pace[0] == "synchronous" and given.powersgd is None and not feeds_back(given)


def feeds_back(given):
    """Tells whether the next step's gradients get the residuals of rounding."""
    return given.wire_dtype in ("int8", "int4") and not given.no_error_feedback


def add_options(parser, dtype):
    add = parser.add_argument
    add("--wire-dtype", choices=("full", "int16", "int8", "int4"), default="full", help="how numbers travel")
    add("--no-error-feedback", action="store_true", help="doesn't make up for what int8 and int4 lost")
    add("--powersgd", type=int, metavar="RANK", help="sends two factors of this rank for each matrix")
    add(
        "--pace",
        type=pace,
        default="synchronous",
        metavar="NAME[:N]",
        help="synchronous (the default); stale:N, a step takes the sum of N steps ago; local-sgd:N or diloco:N, hosts "
        "train by themselves and meet every N steps; diloco:N:V, what they sum then arrives V steps later",
    )
    add("--dtype", choices=("float32", "bfloat16"), default=dtype, help=f"of parameters and gradients ({dtype})")
    add("--seed", type=int, default=0, help="of parameters, batches and rounding; the same on all hosts")


def pace(text):
    name, *numbers = text.split(":")
    most = 2 if name == "diloco" else 1
    if name not in PACES or len(numbers) > most or not all(map(str.isdecimal, numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(PACES)}, with a number (stale:2) or without")
    number, delay = [*map(int, numbers), *(PACES[name], 0)[len(numbers) :]]
    return name, number, delay


def parse(parser):
    given = parser.parse_args()
    name = given.pace[0]
    if given.powersgd is not None and name != "synchronous":
        parser.error("--powersgd goes with no other --pace than synchronous")
    if name == "local-sgd" and given.wire_dtype != "full":
        parser.error(
            "--pace local-sgd takes no --wire-dtype, as it sums parameters; diloco sums differences, and takes one"
        )
    return given
