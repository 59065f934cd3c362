"""Errors pass through XLA, C++ and the control connection, and docs/operate/troubleshooting.md lists them all."""

import traceback
from pathlib import Path

import jax
import pytest

from jax_passing import errors
from jax_passing.errors import Failure
from jax_passing.host import session as sessions


def every_error():
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PassingError)]


@pytest.mark.parametrize("kind", every_error())
def test_translate_finds_the_kind_in_the_text_of_a_jax_error(kind):
    with pytest.raises(kind, match=r"^rank 1 is gone$") as caught, errors.translate():
        raise jax.errors.JaxRuntimeError(f"INTERNAL: {kind.__name__}: rank 1 is gone")
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)


def test_names_of_ranks():
    assert errors.names([3]) == "rank 3"
    assert errors.names([1, 2, 5]) == "ranks 1, 2, 5"
    assert errors.names([0, 2, 3, 4, 5, 9]) == "ranks 0, 2 to 5, 9"


def test_a_text_that_says_the_same_a_hundred_times_isnt_shown():
    """Each program that was dispatched after the one that failed adds a part. Its traceback is kept."""

    def program():
        text = "Error dispatching computation: " * 100
        raise jax.errors.JaxRuntimeError(f"INTERNAL: Buffer Definition Event: {text}HostLostError: gone")

    with pytest.raises(errors.HostLostError, match=r"^gone$") as caught, errors.translate():
        program()
    shown = "".join(traceback.format_exception(caught.value))
    assert "Error dispatching" not in shown
    assert "in program\n" in shown


def test_translate_knows_the_value_error_of_a_dispatching_thread():
    with pytest.raises(errors.SwitchLostError, match=r"^gone$"), errors.translate():
        raise ValueError("ABORTED: SwitchLostError: gone")


def test_translate_leaves_other_errors_alone():
    others = KeyError("HostLostError: no"), ValueError("shapes differ"), jax.errors.JaxRuntimeError("INTERNAL: memory")
    for error in others:
        with pytest.raises(type(error)) as caught, errors.translate():
            raise error
        assert caught.value is error


class FailedSession:
    _failure = Failure("HostLostError", "rank 3 is gone", (3,))


def test_translate_asks_a_failed_session_for_the_ranks(monkeypatch):
    monkeypatch.setattr(sessions, "_current", FailedSession())
    for text in ("UNKNOWN: HostLostError: rank 3 is gone", "INTERNAL: a follow-up of it"):
        with pytest.raises(errors.HostLostError) as caught, errors.translate():
            raise jax.errors.JaxRuntimeError(text)
        assert caught.value.ranks == (3,)
    with pytest.raises(errors.ProgramMismatchError), errors.translate():
        raise jax.errors.JaxRuntimeError("INTERNAL: ProgramMismatchError: another one")


def test_failures_make_new_exceptions_each_time():
    failure = Failure("SwitchLostError", "gone")
    assert failure.exception() is not failure.exception()
    assert type(Failure("FromTheFuture", "x").exception()) is errors.PassingError


def test_another_hosts_text_leaves_the_terminal_alone():
    error = Failure("HostLostError", "rank 1 \x1b[2Jsays\nwhy", (1,)).exception()
    assert str(error).startswith("rank 1 \\x1b[2Jsays\nwhy")


@pytest.mark.parametrize(
    ("gbit", "text"),
    [(9.414, "9.41 Gbit/s"), (0.9999, "1 Gbit/s"), (0.0886, "88.6 Mbit/s"), (8.86e-5, "88.6 kbit/s"), (0, "0 kbit/s")],
)
def test_rates_have_three_digits(gbit, text):
    assert errors.rate(gbit) == text


def test_errors_are_what_users_expect_to_catch():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.UsageError, TypeError)  # as of a dtype that has no sum
    assert issubclass(errors.UnvaryingInputError, errors.UsageError)
    assert all(issubclass(kind, RuntimeError) for kind in every_error())


def test_docs_list_every_error():
    page = Path(__file__).parents[2] / "docs" / "operate" / "troubleshooting.md"
    text = page.read_text()
    assert [kind.__name__ for kind in every_error() if f"`{kind.__name__}`" not in text] == []
