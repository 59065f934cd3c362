"""A server on a thread with an event loop of its own, beside tests that block."""

import asyncio
import threading


class ServingThread:
    """`_serve` of a subclass runs until `_stop` is set, and calls `_on_listening` when it can be reached."""

    def __init__(self):
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(60)

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._serve()

    def _on_listening(self, address):
        self.address = address
        self._ready.set()

    def stop(self):
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(60)
            assert not self._thread.is_alive()
