#!/usr/bin/env python3
"""Host side: starts an emulated machine, talks to the agent in it. Everything is loopback or a unix socket.

usage: machine.py boot NAME | sh NAME COMMAND [SECONDS] | job NAME COMMAND [SECONDS] | stop NAME
W in the environment is the folder with the images (see vm.sh).
"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

W = os.environ["W"]
HERE = os.path.dirname(os.path.abspath(__file__))


class Machine:
    """One QEMU process and the connection to its agent."""

    def __init__(self, name, memory=1024, cpus=1):
        self.name, self.dir, self.memory, self.cpus = name, f"{W}/run/{name}", memory, cpus
        os.makedirs(self.dir, exist_ok=True)
        self.socket, self.waiting, self.count, self.lock = None, {}, 0, threading.Lock()

    def start(self):
        for f in ("agent", "mux"):
            try:
                os.unlink(f"{self.dir}/{f}")
            except FileNotFoundError:
                pass
        cmd = ["nice", "-n", os.environ.get("NICE", "19"), "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", str(self.memory), "-smp", str(self.cpus),
               "-kernel", f"{W}/vmlinuz", "-initrd", f"{W}/initrd.gz",
               "-append", f"console=ttyS0 quiet panic=5 systemd.hostname={self.name} mitigations=off audit=0 systemd.show_status=0 net.ifnames=0",
               "-drive", f"file={W}/root.img,format=raw,if=virtio,snapshot=on",
               "-drive", f"file={W}/payload.tar,format=raw,if=virtio,readonly=on",
               "-device", "virtio-serial-pci", "-chardev", f"socket,id=ag,path={self.dir}/agent,server=on,wait=off",
               "-device", "virtserialport,chardev=ag,name=tc.agent",
               "-display", "none", "-serial", f"file:{self.dir}/console", "-no-reboot", "-nic", "none"]
        log = open(f"{self.dir}/qemu.log", "w")
        qemu = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        with open(f"{self.dir}/pid", "w") as f:
            f.write(str(qemu.pid))

    def connect(self, limit=240):
        end = time.time() + limit
        while time.time() < end:
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(f"{self.dir}/agent")
                break
            except OSError:
                s.close()
                time.sleep(0.3)
        self.socket = s
        threading.Thread(target=self._read, daemon=True).start()
        while time.time() < end:
            try:
                self.rpc({"cmd": "true"}, 3)
                return self
            except TimeoutError:
                pass
        raise TimeoutError("the agent does not answer; see " + self.dir + "/console")

    def _read(self):
        buf = b""
        while d := self.socket.recv(65536):
            buf += d
            while b"\n" in buf:
                line, buf = buf.split(b"\n", 1)
                try:
                    answer = json.loads(line)
                except ValueError:
                    continue
                with self.lock:
                    waiter = self.waiting.get(answer.get("id"))
                if waiter:
                    waiter[1] = answer
                    waiter[0].set()

    def rpc(self, request, limit):
        with self.lock:
            self.count += 1
            request["id"] = f"{os.getpid()}.{self.count}"
            waiter = self.waiting[request["id"]] = [threading.Event(), None]
            self.socket.sendall((json.dumps(request) + "\n").encode())
        if not waiter[0].wait(limit):
            raise TimeoutError(str(request)[:200])
        del self.waiting[request["id"]]
        return waiter[1]


class Attached:
    """A machine reached over its mux.py."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{W}/run/{name}/mux")
        self.file = self.socket.makefile("rw")

    def run(self, cmd, timeout=120):
        self.file.write(json.dumps({"cmd": cmd, "timeout": timeout, "limit": timeout + 30}) + "\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        return answer["rc"], answer["out"]

    def sh(self, cmd, timeout=120):
        return self.run(cmd, timeout)[1]


def job(name, cmd, limit=900):
    """Runs cmd detached in the machine, and asks now and then whether it is done."""
    k = str(time.time_ns())
    Attached(name).sh(f"mkdir -p /run/tc/jobs; cat >/run/tc/jobs/{k}.sh <<'XEOF'\n{cmd}\nXEOF\nsetsid nohup bash -c 'bash /run/tc/jobs/{k}.sh >/run/tc/jobs/{k}.out 2>&1; echo $? >/run/tc/jobs/{k}.rc' >/dev/null 2>&1 &")
    end = time.time() + limit
    while True:
        time.sleep(6)
        out = Attached(name).sh(f"cat /run/tc/jobs/{k}.rc 2>/dev/null && cat /run/tc/jobs/{k}.out")
        if not out and time.time() > end:
            out = "-1\n(did not end)\n" + Attached(name).sh(f"cat /run/tc/jobs/{k}.out")
        if out:
            rc, _, text = out.partition("\n")
            return int(rc), text


def boot(name):
    began = time.time()
    machine = Machine(name)
    machine.start()
    with open(f"{machine.dir}/mux.log", "w") as log:
        subprocess.Popen([sys.executable, f"{HERE}/mux.py", name], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    while not os.path.exists(f"{machine.dir}/mux"):
        if time.time() > began + 900:
            sys.exit(f"{name} does not come up: see {machine.dir}")
        time.sleep(0.5)
    print(Attached(name).sh("mkdir -p /opt/tc && tar xf /dev/vdb -C /opt/tc && uname -r"), end="")
    print(f"{name} is up after {time.time() - began:.1f} s")


def stop(name):
    for f in ("pid", "mux.pid"):
        try:
            with open(f"{W}/run/{name}/{f}") as g:
                os.kill(int(g.read()), signal.SIGTERM)
            os.unlink(f"{W}/run/{name}/{f}")
        except (FileNotFoundError, ProcessLookupError):
            pass


if __name__ == "__main__":
    verb, name, *rest = sys.argv[1:]
    if verb == "boot":
        boot(name)
    elif verb == "sh":
        rc, out = Attached(name).run(rest[0], int(rest[1]) if len(rest) > 1 else 120)
        sys.stdout.write(out)
        sys.exit(rc & 255)
    elif verb == "job":
        rc, text = job(name, rest[0], int(rest[1]) if len(rest) > 1 else 900)
        sys.stdout.write(text)
        sys.exit(rc & 255)
    elif verb == "stop":
        stop(name)
