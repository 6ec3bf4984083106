#!/usr/bin/env python3
"""Three instances on one lock, in one terminal; every few seconds the one in control is killed or stopped.

    examples/demo/demo.py                    a blob on Azurite, which npx fetches
    examples/demo/demo.py --file demo.lock   no Azurite: a file
    examples/demo/demo.py --cast demo.cast   records it, too (asciinema format, version 2)

At the end `trafficcop timeline` says who held control when, and draws it (--svg FILE).
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

NAMES = ["web1", "web2", "web3"]
COLOURS = {"web1": "\x1b[34m", "web2": "\x1b[33m", "web3": "\x1b[35m"}
BOLD, DIM, RED, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[0m"
WIDTH, HEIGHT = 84, 18
# A character of the strips below.
STEP = 0.25


class Instance:
    """One trafficcop; after its death another one of the same name."""

    def __init__(self, name, demo):
        self.name, self.demo = name, demo
        self.events = os.path.join(demo.dir, name + ".events")
        self.strip, self.process, self.again_at, self.read = "", None, 0.0, 0
        self.token = None

    def start(self):
        demo = self.demo
        self.process = subprocess.Popen(
            [demo.args.trafficcop, "run", "-q", *demo.lock, "--identity", self.name, "--lease", "15s",
             "--grace", "1s", "--event-log", self.events, "--", "sh", "-c", "while :; do sleep 1; done"],
            env=demo.env, stdin=subprocess.DEVNULL,
            stderr=open(os.path.join(demo.dir, self.name + ".log"), "a"))

    def look(self):
        """Reads what it has written since the last time, whole lines."""
        if not os.path.exists(self.events):
            return
        with open(self.events, encoding="utf-8") as log:
            log.seek(self.read)
            for line in iter(log.readline, ""):
                if not line.endswith("\n"):
                    break
                self.read += len(line.encode())
                event = json.loads(line)
                if event["event"] == "holding":
                    self.token = event["token"]
                    self.demo.say(f"{self.name}: in control, token {self.token}")
                elif event["event"] in ("released", "competing"):
                    self.token = None

    def step(self):
        if self.process and self.process.poll() is not None:
            self.process, self.token = None, None
            self.again_at = time.monotonic() + 2
        if not self.process and time.monotonic() >= self.again_at:
            self.start()
        self.look()

    def mark(self):
        """How it stands, as one character and in words."""
        if not self.process:
            return " ", RED + "gone" + PLAIN
        if self.token is not None:
            return str(self.token)[-1], BOLD + f"in control, token {self.token}" + PLAIN
        return "-", DIM + "standing by" + PLAIN


class Demo:
    def __init__(self, args, directory):
        self.args, self.dir, self.began = args, directory, time.monotonic()
        self.env, self.said, self.azurite, self.clear = dict(os.environ), [], None, "\x1b[2J"
        self.cast = open(args.cast, "w", encoding="utf-8") if args.cast else None
        if self.cast:
            header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "trafficcop: three instances on one lock"}
            self.cast.write(json.dumps(header) + "\n")
        if args.file:
            self.lock = ["--file", args.file]
        else:
            self.lock = ["--emulator", "--blob", f"demo/lock-{os.getpid()}", "--doorbell=127.0.0.1"]
        self.instances = [Instance(name, self) for name in NAMES]

    def start_azurite(self):
        def answers():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", 10000)) == 0

        if self.args.file or answers():
            return
        if not shutil.which("npx"):
            sys.exit("demo: npx is not installed, and nothing listens on 127.0.0.1:10000: install Node.js, or use --file demo.lock")
        print("starting Azurite...", flush=True)
        self.azurite = subprocess.Popen(
            ["npx", "-y", "-p", "azurite", "azurite-blob", "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while not answers():
            if self.azurite.poll() is not None:
                sys.exit("demo: Azurite does not start; --file needs none")
            time.sleep(0.1)

    def now(self):
        return time.monotonic() - self.began

    def say(self, text):
        self.said.append(f"{self.now():6.2f} s  {text}")

    def show(self, text):
        """On the terminal, and in the recording."""
        sys.stdout.write(text)
        sys.stdout.flush()
        self.record(text)

    def record(self, text):
        if self.cast:
            self.cast.write(json.dumps([round(self.now(), 3), "o", text.replace("\n", "\r\n")]) + "\n")

    def frame(self):
        what = self.args.file or "a blob on Azurite"
        lines = [BOLD + f"Three instances of trafficcop, one lock: {what}" + PLAIN, ""]
        for instance in self.instances:
            strip = instance.strip[-(WIDTH - 34):]
            lines.append(f"  {COLOURS[instance.name]}{instance.name}{PLAIN}  {COLOURS[instance.name]}{strip}{PLAIN}"
                         + " " * (WIDTH - 34 - len(strip)) + "  " + instance.mark()[1])
        lines += ["", DIM + "  number: in control, with that token   -: standing by   blank: dead" + PLAIN, ""]
        room = HEIGHT - len(lines) - 1
        for line in self.said[-room:]:
            lines.append("  " + (RED + line + PLAIN if "kill" in line or "TERM" in line else line))
        lines += [""] * (HEIGHT - 1 - len(lines))
        # Of the first one, the clearing is a part: a recording begins with a full picture.
        clear, self.clear = self.clear, ""
        self.show(clear + "\x1b[H" + "".join(line + "\x1b[K\n" for line in lines))

    def run(self):
        self.start_azurite()
        self.began = time.monotonic()
        faults = [(signal.SIGKILL, "kill -9"), (signal.SIGTERM, "kill -TERM")]
        next_fault, count = self.args.every, 0
        while self.now() < self.args.seconds:
            for instance in self.instances:
                instance.step()
                instance.strip += instance.mark()[0]
            holder = next((one for one in self.instances if one.token is not None and one.process), None)
            # The last one is left in peace for a while, so that the end is an end.
            if holder and self.now() > next_fault and self.now() < self.args.seconds - 2:
                number, name = faults[count % 2]
                self.say(f"{name} of {holder.name}, which is in control")
                holder.process.send_signal(number)
                next_fault, count = self.now() + self.args.every, count + 1
            self.frame()
            time.sleep(STEP)
        return count

    def end(self):
        for instance in self.instances:
            if instance.process and instance.process.poll() is None:
                instance.process.terminate()
        for instance in self.instances:
            if instance.process:
                instance.process.wait()
        if self.azurite:
            try:
                os.killpg(self.azurite.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            self.azurite.wait()

    def timeline(self):
        command = [self.args.trafficcop, "timeline", *[one.events for one in self.instances]]
        if self.args.svg:
            command[2:2] = ["--svg", self.args.svg]
        said = subprocess.run(command, capture_output=True, text=True)
        text = "\x1b[2J\x1b[H" + said.stdout + said.stderr
        self.show(text)
        if self.cast:
            # The last picture stands for four seconds.
            self.began -= 4
            self.record(text)
            self.cast.close()
        return said.returncode


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--trafficcop", default=shutil.which("trafficcop") or "target/release/trafficcop", help="the binary")
    parse.add_argument("--file", help="a lock on this file, and no Azurite")
    parse.add_argument("--seconds", type=float, default=30, help="how long (30)")
    parse.add_argument("--every", type=float, default=4, help="from one fault to the next, in seconds (4)")
    parse.add_argument("--cast", help="record it in this file")
    parse.add_argument("--svg", help="draw the timeline in this file")
    args = parse.parse_args()
    if not shutil.which(args.trafficcop):
        sys.exit(f"demo: there is no {args.trafficcop}: build it (cargo build --release), or say where it is (--trafficcop)")
    args.trafficcop = os.path.abspath(shutil.which(args.trafficcop))
    # Ctrl-C, a kill and a closed terminal all end what was started here, and then this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as directory:
        demo = Demo(args, directory)
        try:
            demo.run()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            demo.end()
        status = demo.timeline()
    sys.exit(status)


if __name__ == "__main__":
    main()
