"""Processes that take one step at a time: the driver asks all of them the same, and waits for each one's answer.

So hosts stay together although some of their steps end with an error, and whoever hangs is named. Questions go to
stdin, answers come from stdout, a line of JSON each, answers behind a mark; what else a process prints is kept.
"""

import collections
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MARK = "@answer "
KEPT_LINES = 200


class NoAnswerError(AssertionError):
    """A process hangs, or is dead."""


class Follower:
    """A process, as its driver sees it."""

    def __init__(self, program: str | Path, arguments: Sequence[str], env: dict[str, str]) -> None:
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.popen = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths), **env},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(MARK):
                # Another thread's log may follow on the same line.
                self._answers.put(json.JSONDecoder().raw_decode(line.removeprefix(MARK))[0])
            else:
                self.lines.append(line.rstrip("\n"))
        self._answers.put(None)

    def tell(self, question: dict[str, Any]) -> None:
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(json.dumps(question) + "\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says so

    def answer(self, until: float) -> dict[str, Any]:
        try:
            found = self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise NoAnswerError("it hangs") from None
        if found is None:
            raise NoAnswerError(f"it ended with {self.popen.wait(10)}")
        return found

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(10)


def ask(followers: Sequence[Follower], question: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
    """Every process's answer. Raises NoAnswerError if one has none within `limit_s`, with what that one printed."""
    for follower in followers:
        follower.tell(question)
    until = time.monotonic() + limit_s
    answers, silent = [], []
    for number, follower in enumerate(followers):
        try:
            answers.append(follower.answer(until))
        except NoAnswerError as error:
            silent.append(f"process {number}: {error}. It printed:\n" + "\n".join(follower.lines))
    if silent:
        raise NoAnswerError(f"{question} got no answer within {limit_s:g} s from\n" + "\n".join(silent))
    return answers


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The follower's side: answers until its driver closes the line."""
    for line in sys.stdin:
        print(MARK + json.dumps(handle(json.loads(line))), flush=True)


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """{"value": what `action` returns} or, if it raised, {"error": name, "text": message}.

    The name is that of our exception, also where it came through JAX; else it begins with "not ours".
    """
    from jax_passing import errors

    try:
        return {"value": action()}
    except Exception as error:
        ours = error if isinstance(error, errors.PassingError) else errors.typed(error)
        if ours is None:
            return {"error": f"not ours: {type(error).__name__}", "text": traceback.format_exc()[-3000:]}
        return {"error": type(ours).__name__, "text": str(ours)}
