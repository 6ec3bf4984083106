#!/usr/bin/env python3
"""Works for as long as it is in control; asking costs a read of memory and of the clock.

    trafficcop run --blob locks/worker -- ./examples/check/worker.py
"""

import mmap
import os
import struct
import time


class Control:
    """Until when this process is in control, as trafficcop's guardian keeps it."""

    def __init__(self):
        with open(os.environ["TRAFFICCOP_CONTROL"], "rb") as file:
            self._word = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    def remaining(self):
        """Seconds, 0.0 without control; more than 500 years where there is no deadline."""
        # First the deadline, then the clock, which counts the time the machine sleeps.
        (until,) = struct.unpack_from("=Q", self._word)
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return max(0, until - now) / 1e9

    def __bool__(self):
        return self.remaining() > 0


def main():
    control = Control()
    while control:
        # A piece of work begins only if there is time for it.
        if control.remaining() > 2:
            time.sleep(0.5)
            print("worked, token", os.environ["TRAFFICCOP_TOKEN"], flush=True)
        else:
            time.sleep(0.2)
    print("no longer in control: leaving it to the next one", flush=True)


if __name__ == "__main__":
    main()
