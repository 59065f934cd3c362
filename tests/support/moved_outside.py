"""An outside (`protocol/outside.py`) on a clock that the test moves, with connections for whose other end it speaks."""

from types import SimpleNamespace

from jax_passing.protocol import control_messages as messages


class MovedOutside:
    """Timers ring when the test moves the clock over them; late, if it moves it at one go.

    Attributes:
      calls: what was called, in order.
    """

    def __init__(self):
        self.now_s, self.timers, self.calls = 1000.0, [], []

    def now(self):
        return self.now_s

    def call_later(self, delay_s, callback):
        timer = (self.now_s + delay_s, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def random_bits(self, count):
        return 0

    def connect(self, address, timeout_s, conversation, job, key):
        self.calls.append(Call(address, conversation))

    def pass_by(self, seconds, step_s=0.1):
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + step_s)
            for timer in [timer for timer in self.timers if timer[0] <= self.now_s]:
                self.timers.remove(timer)
                timer[1]()


class Call:
    """A connection whose other end is the test.

    Attributes:
      sent: what the caller has said.
    """

    host, own_host, link_gbit = "10.0.0.1", "10.0.0.2", None

    def __init__(self, address, conversation):
        self.address, self._conversation = address, conversation
        self.sent, self.is_open = [], True

    def opens(self):
        self._conversation.opened(self)
        return self

    def says(self, *several):
        for message in several:
            self._conversation.heard(message if isinstance(message, bytes) else messages.encode(message))

    def secures(self):
        self._conversation.secured()

    def ends(self, error=None):
        self._conversation.closed(error)

    # The caller uses this.

    def send(self, message):
        self.sent.append(message)
        return True

    def give_up(self):
        self.is_open = False

    close = give_up
