#!/usr/bin/env python3
"""Works in pieces. On a stop it finishes the piece in hand, begins no other, and says that it is safe:

    trafficcop run --stop-to main --grace 30s --blob locks/worker -- ./examples/check/worker.py

A piece must fit into --grace, and is begun only if it fits into what is left before the lease's deadline.
Asking costs a read of memory and of the clock.
"""

import mmap
import os
import signal
import struct
import time

LONGEST = 2  # seconds that a piece takes at most


class Control:
    """Tells whether this process may begin another piece, as trafficcop's guardian writes it down."""

    def __init__(self):
        with open(os.environ["TRAFFICCOP_CONTROL"], "rb") as file:
            self._words = mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ)

    def remaining(self):
        """Seconds until trafficcop may send SIGKILL; more than 500 years where there is no deadline."""
        until, drain = struct.unpack_from("=QQ", self._words)
        return self._left(drain or until)

    def may_begin(self):
        """Whether this process is in control, and nothing has asked it to stop."""
        until, drain = struct.unpack_from("=QQ", self._words)
        return drain == 0 and self._left(until) > 0

    def wait(self, seconds):
        """Sleeps, but not past the moment at which the answer is no; returns the answer."""
        end = time.monotonic() + seconds
        while self.may_begin():
            rest = end - time.monotonic()
            if rest <= 0:
                return True
            time.sleep(min(rest, 0.05))
        return False

    @staticmethod
    def _left(until):
        # First the file, then the clock, which counts the time the machine sleeps.
        return max(0, until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9


def piece():
    print("began a piece, token", os.environ["TRAFFICCOP_TOKEN"], flush=True)
    time.sleep(0.5)  # the work
    print("finished the piece", flush=True)


def main():
    # The signal goes to this process alone (--stop-to main). The loop asks the control file, which tells of the stop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    control = Control()
    while control.wait(0.2):
        # With too little time left it waits for the renewal.
        if control.remaining() >= LONGEST:
            piece()
    print("safe: no piece is in hand, and none will be begun", flush=True)


if __name__ == "__main__":
    main()
