"""Work beside everything else in an event loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Starts it. It is in `tasks` until it ends: asyncio itself keeps no task alive."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
