"""In the machine: clients, instances of trafficcop, the journal and its judge. Used by scenarios.py and units.py.

The server runs in the root namespace. Each client lives in network, UTS and mount namespaces of its own on a veth
pair, so that it is a client of its own to the server; all have one clock.
"""
import os
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import overlap as judge

RUN = "/run/tc"
JOURNAL = f"{RUN}/journal"
BINARY = "/opt/tc/trafficcop"
PROBE = "/opt/tc/probe"
TABLE = "cut"
os.makedirs(RUN, exist_ok=True)


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def sh(cmd, check=False, timeout=200):
    try:
        p = subprocess.run(["bash", "-c", cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"(no answer in {timeout} s)"
    if check and p.returncode:
        raise RuntimeError(cmd + "\n" + p.stdout.decode())
    return p.stdout.decode(errors="replace").strip()


class Server:
    """The root namespace: an instance started here sees the drive as the server's own disk."""
    name = "server"

    def enter(self):
        return []

    def sh(self, cmd, check=False, timeout=200):
        return sh(cmd, check, timeout)

    def processes(self, names="trafficcop|tc-guardian|probe"):
        return in_namespace("self", names)


class Client:
    def __init__(self, name):
        self.name, n = name, ord(name) - 96
        self.server, self.ip = f"10.0.{n}.1", f"10.0.{n}.2"
        try:
            self.pid = int(open(f"{RUN}/ns.{name}").read())
            os.kill(self.pid, 0)
        except (OSError, ValueError):
            self._make()

    def _make(self):
        p = subprocess.Popen(["unshare", "-n", "-u", "-m", "sleep", "infinity"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)
        self.pid = p.pid
        with open(f"{RUN}/ns.{self.name}", "w") as f:
            f.write(str(p.pid))
        v, w = "v" + self.name, "w" + self.name
        sh(f"ip link del {v} 2>/dev/null; ip link add {v} type veth peer name {w} && ip link set {w} netns {p.pid} && ip addr add {self.server}/24 dev {v} && ip link set {v} up", True)
        # nothing under /run is shared either, as between machines
        self.sh("mkdir -p /mnt/run; mount -t tmpfs none /mnt/run; mkdir -p /mnt/run/tc /mnt/run/rpcbind /mnt/run/lock; chmod 777 /mnt/run/rpcbind; mount --bind /run/tc /mnt/run/tc; mount --rbind /mnt/run /run; mount -t tmpfs none /tmp", True)
        self.sh(f"echo host{self.name} >/proc/sys/kernel/hostname; ip link set lo up; ip addr add {self.ip}/24 dev {w}; ip link set {w} up", True)

    def enter(self):
        return ["nsenter", "-t", str(self.pid), "-n", "-u", "-m"]

    def sh(self, cmd, check=False, timeout=200):
        try:
            p = subprocess.run([*self.enter(), "bash", "-c", cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
        except subprocess.TimeoutExpired:
            return f"(no answer in {timeout} s)"
        if check and p.returncode:
            raise RuntimeError(cmd + "\n" + p.stdout.decode())
        return p.stdout.decode(errors="replace").strip()

    def cut(self):
        """Drops everything between this client and the server, both ways."""
        sh(f"nft 'add rule inet {TABLE} i iifname v{self.name} drop; add rule inet {TABLE} o oifname v{self.name} drop'", True)

    def processes(self, names="trafficcop|tc-guardian|probe"):
        """Ids of our processes in this client's namespaces."""
        return in_namespace(self.pid, names)


def in_namespace(of, names):
    """Ids of the processes of these names in the network namespace of a process."""
    mine, out = os.readlink(f"/proc/{of}/ns/net"), []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/comm") as f:
                if re.search(names, f.read()) and os.readlink(f"/proc/{p}/ns/net") == mine:
                    out.append(int(p))
        except OSError:
            pass
    return out


def heal():
    """Nobody is cut off."""
    sh(f"nft 'add table inet {TABLE}; add chain inet {TABLE} i {{ type filter hook input priority 0; }}; add chain inet {TABLE} o {{ type filter hook output priority 0; }}; flush table inet {TABLE}'", True)


class Instance:
    """A trafficcop on a client (or on the server)."""
    all = []

    def __init__(self, client, lock, args="", probe="-b 20", name=None, cmd=None, binary=BINARY):
        self.client, self.name = client, name or client.name
        self.begun, self.lines, self.rc, self.ended = now(), [], None, None
        cmd = cmd or f"{PROBE} {JOURNAL} {self.name} {probe}"
        self.p = subprocess.Popen([*client.enter(), "bash", "-c", f"exec {binary} run --file {lock} {args} -- {cmd}"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._wait, daemon=True).start()
        Instance.all.append(self)

    def _read(self):
        for line in self.p.stdout:
            self.lines.append((now(), line.decode(errors="replace").rstrip()))

    def _wait(self):
        rc = self.p.wait()
        self.ended = now()
        self.rc = rc

    def log(self, t0):
        return "\n".join(f"    [{self.name} {(t - t0) / 1e9:8.2f}] {line}" for t, line in list(self.lines))

    def text(self, since=0):
        return "\n".join(line for t, line in list(self.lines) if t >= since)

    def guardian(self):
        with open(f"/proc/{self.p.pid}/task/{self.p.pid}/children") as f:
            return int(f.read().split()[0])

    def kill(self, s):
        try:
            os.kill(self.p.pid, s)
        except ProcessLookupError:
            pass

    def wait(self, limit=60):
        until(lambda: self.rc is not None, limit)
        return self.rc


def until(cond, limit, step=0.05):
    end = time.time() + limit
    while time.time() < end:
        if r := cond():
            return r
        time.sleep(step)
    return None


# ---------------------------------------------------------------- the journal

_read = {"lives": {}, "offset": 0}


def lives():
    """All processes of the journal; only what is new in it is read."""
    try:
        with open(JOURNAL) as f:
            f.seek(_read["offset"])
            text = f.read()
    except FileNotFoundError:
        return _read["lives"]
    whole = text[:text.rfind("\n") + 1]
    _read["offset"] += len(whole)
    return judge.feed(_read["lives"], whole)


def mains(name=None):
    """The commands themselves, without what they started, by their start."""
    found = (x for x in lives().values() if x.role == "main" and (name is None or x.owner.split(".")[0] == name))
    return sorted(found, key=lambda x: x.start)


def last_beat(owner):
    """The last sign of life of a command's whole tree."""
    return max(x.last for x in lives().values() if x.owner == owner)


def signals(owner):
    return sorted((n, e, x.role) for x in lives().values() if x.owner == owner for e, n in x.sigs)


def overlap():
    return judge.overlap_ns(lives())[0] / 1e9


def wait_run(instance, limit=60, since=0):
    return until(lambda: next((x for x in mains(instance.name) if x.start > since), None), limit)


def wait_next(since, limit, other_than=None):
    return until(lambda: next((x for x in mains() if x.start > since and x.owner != other_than), None), limit)


def stuck(names="trafficcop|guardian|probe|dd"):
    """Threads of our processes that hang in the kernel, and where."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not re.search(names, open(f"/proc/{pid}/comm").read()):
                continue
            for tid in os.listdir(f"/proc/{pid}/task"):
                stat = open(f"/proc/{pid}/task/{tid}/stat").read()
                comm, state = stat.split("(", 1)[1].rsplit(")", 1)
                stack = [q.split()[1].split("+")[0] for q in open(f"/proc/{pid}/task/{tid}/stack").read().splitlines()]
                if state.split()[0] in "DZX" or any("nfs" in f or "rpc" in f or "cifs" in f or "smb" in f for f in stack):
                    out.append(f"      pid {pid} tid {tid} {comm} {state.split()[0]}: {' < '.join(stack[:14])}")
        except OSError:
            pass
    return "\n".join(out)


def fresh(clients):
    """Nothing of an earlier run is left, and the journal is empty."""
    heal()
    Instance.all = []
    for _ in range(3):
        left = [p for c in clients for p in c.processes()]
        for p in left:
            try:
                os.kill(p, 9)
            except OSError:
                pass
        if not left:
            break
        time.sleep(0.3)
    try:
        os.unlink(JOURNAL)
    except FileNotFoundError:
        pass
    sh(f"touch {JOURNAL}; chmod 666 {JOURNAL}")
    _read.update(lives={}, offset=0)


def end_all(clients, limit=40):
    """Asks all instances to end, and counts what of our processes is there when they have."""
    heal()
    for i in Instance.all:
        if i.rc is None:
            i.kill(15)
    end = time.time() + limit
    for i in Instance.all:
        i.wait(max(0.1, end - time.time()))
    late = [i.name for i in Instance.all if i.rc is None]
    until(lambda: not any(c.processes() for c in clients), 10, 0.3)
    left = sum(len(c.processes()) for c in clients)
    if left:
        print(f"    left over ({late} did not end):\n" + sh("ps -eo pid,ppid,stat,args | grep -E 'trafficcop|guardian|probe' | grep -v grep"))
        print(stuck())
    return left


def show(t0):
    """The journal and the logs, in seconds from t0."""
    for x in sorted(lives().values(), key=lambda x: x.start):
        sigs = " ".join(f"{e}@{(n - t0) / 1e9:.2f}" for e, n in x.sigs)
        print(f"    {x.owner:16} {x.role:6} {(x.start - t0) / 1e9:8.2f} .. {(x.last - t0) / 1e9:8.2f} {'end' if x.ended else 'cut'} {sigs}")
    for i in Instance.all:
        print(i.log(t0))
        print(f"    [{i.name}] status {i.rc}" + (f" at {(i.ended - t0) / 1e9:.2f}" if i.ended else ""))
    sys.stdout.flush()


def median(x):
    x = sorted(v for v in x if v is not None)
    return x[len(x) // 2] if x else None


def figures(values):
    """The median and all values, for a result's line."""
    text = " ".join("-" if v is None else f"{v:.2f}" for v in values)
    m = median(values)
    if len(values) == 1:
        return text
    return f"{'-' if m is None else f'{m:.2f}'} ({text})"


class Lag(threading.Thread):
    """How long the machine itself stood still: an emulated one has to share its processor."""

    def __init__(self):
        super().__init__(daemon=True)
        self.longest = 0.0
        self.start()

    def run(self):
        while True:
            t = now()
            time.sleep(0.05)
            self.longest = max(self.longest, (now() - t) / 1e9 - 0.05)


class Result:
    """One line that begins with R: drive | scenario | ok or what was not as it should be | figures."""

    def __init__(self, drive, scenario):
        self.drive, self.scenario, self.wrong, self.parts, self.overlap, self.survivors = drive, scenario, [], [], 0.0, 0
        self.lag = Lag()

    def expect(self, condition, otherwise):
        if not condition and otherwise not in self.wrong:
            self.wrong.append(otherwise)

    def figure(self, text):
        self.parts.append(text)

    def close_run(self, clients):
        """Judges what holds for every scenario, and ends the run."""
        o = overlap()
        self.overlap = max(self.overlap, o)
        self.expect(o == 0, "OVERLAP")
        left = end_all(clients)
        self.survivors = max(self.survivors, left)
        self.expect(left == 0, "survivors")
        o = overlap()
        self.overlap = max(self.overlap, o)
        self.expect(o == 0, "OVERLAP")

    def say(self):
        if self.lag.longest > 1:
            self.figure(f"(the machine itself stood still for up to {self.lag.longest:.1f} s)")
        verdict = "ok" if not self.wrong else "FAIL: " + ", ".join(self.wrong)
        print(f"R {self.drive} | {self.scenario} | {verdict} | {'; '.join(self.parts)} | {self.overlap:.3f} | {self.survivors}", flush=True)
