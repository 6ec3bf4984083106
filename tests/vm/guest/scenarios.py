#!/usr/bin/env python3
"""In the machine: a lock on a shared drive. usage: scenarios.py DRIVE SCENARIO [ARG...]

DRIVE is nfs4, nfs3 or smb. Each scenario prints one line that begins with R (see harness.Result), and below it the
journals and logs, in seconds from the fault. What is judged is in README.md.
"""
import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (BINARY, JOURNAL, PROBE, RUN, Client, Instance, Result, Server, end_all, figures, fresh, heal, last_beat, lives, mains, median, now, sh, show,
                     signals, stuck, until, wait_next, wait_run)

POLL = 2.4          # --poll 2s, +20 %
ROOM = {60.0: 28, 30.0: 14, 15.0: 6}  # for retries, by lease
SLACK = 1.0         # what the emulation may cost: a start takes 0.3 s here, a fork storm more


class Nfs:
    mount_point, on_server = "/mnt/nfs", "/srv/share"
    names = "abc"

    def __init__(self, name):
        self.name = name
        self.options = os.environ.get("OPTIONS", "vers=4.2,hard" if name == "nfs4" else "vers=3,hard")

    def serve(self, lease, grace):
        sh("modprobe -a nfsd nfs nfsv4 nfsv3 veth lockd")
        with open("/etc/nfs.conf", "w") as f:
            f.write(f"[general]\npipefs-directory=/run/rpc_pipefs\n[nfsd]\nlease-time={lease}\ngrace-time={grace}\nthreads=4\n[mountd]\nmanage-gids=n\n[lockd]\n[statd]\n")
        with open("/etc/exports", "w") as f:
            f.write("/srv/share *(rw,no_root_squash,no_subtree_check,insecure,sync,fsid=0)\n")
        sh("systemctl start rpcbind rpc-statd; systemctl restart nfs-server", True)
        return "lease, grace, versions: " + sh("cat /proc/fs/nfsd/nfsv4leasetime /proc/fs/nfsd/nfsv4gracetime /proc/fs/nfsd/versions").replace("\n", " | ")

    def mount(self, c):
        if self.name == "nfs4":
            return c.sh(f"mountpoint -q /mnt/nfs || mount -t nfs4 -o {self.options} {c.server}:/ /mnt/nfs")
        # a lock daemon needs rpcbind and statd in the client's own network
        if "nolock" not in self.options:
            c.sh("ss -Hlnt sport = 111 | grep -q . || { mount -t tmpfs none /var/lib/nfs; mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak; "
                 "setsid rpcbind -f </dev/null >/run/rpcbind.log 2>&1 & sleep 2; setsid rpc.statd --no-notify </dev/null >/dev/null 2>&1; sleep 1; }")
        return c.sh(f"mountpoint -q /mnt/nfs || mount -t nfs -o {self.options} {c.server}:/srv/share /mnt/nfs")

    # What the unit does, without its seconds here: no server, then one that begins with its grace period.
    stop_service = "rpc.nfsd 0"
    start_service = "rpc.nfsd 4"


SMB_CONF = """[global]
server role = standalone server
server min protocol = SMB2_10
smb ports = 445
log level = 1
load printers = no
disable spoolss = yes
bind interfaces only = no
[share]
path = /srv/smb
read only = no
force user = root
"""


class Smb:
    mount_point, on_server = "/mnt/smb", "/srv/smb"
    names = "dek"

    def __init__(self, name):
        self.name = name
        self.options = os.environ.get("OPTIONS", "vers=3.1.1")

    def serve(self, *_):
        sh("modprobe -a cifs veth; mkdir -p /srv/smb; chmod 777 /srv/smb")
        with open("/etc/samba/smb.conf", "w") as f:
            f.write(SMB_CONF)
        sh("(echo tc; echo tc) | smbpasswd -a -s root; systemctl restart smbd")
        time.sleep(3)
        return sh("smbd --version")

    def mount(self, c):
        return c.sh(f"mkdir -p /mnt/smb; mountpoint -q /mnt/smb || mount -t cifs //{c.server}/share /mnt/smb -o username=root,password=tc,{self.options}")

    # As for NFS: without the seconds that the service manager takes here.
    stop_service = "pkill -x smbd; for i in $(seq 30); do pgrep -x smbd >/dev/null || break; sleep 0.1; done; pkill -KILL -x smbd"
    start_service = "smbd -D"


DRIVE = None
SCENARIOS = {}


def scenario(f):
    SCENARIOS[f.__name__] = f
    return f


def three():
    return [Client(x) for x in DRIVE.names]


_count = 0


def new_lock(kind):
    """A path that nobody used before, relative to the drive."""
    global _count
    _count += 1
    return f"{kind}{time.time_ns() // 1000000 % 10**9}-{_count}"


def on_drive(name):
    return f"{DRIVE.mount_point}/{name}"


def last_version(name, before=None):
    """When the greatest version (of those made before) was made, on the server's disk: (number, CLOCK_BOOTTIME ns)."""
    d, shift = f"{DRIVE.on_server}/{name}.versions", time.time_ns() - now()
    best = (0, None)
    for line in sh(f"cd {d} 2>/dev/null && stat -c '%n %.9W' 0* 2>/dev/null").splitlines():
        n, born = line.split()
        s, frac = born.split(".")
        at = int(s) * 10**9 + int(frac) - shift
        if (before is None or at <= before) and int(n) > best[0]:
            best = (int(n), at)
    return best


def last_renewal(name, t):
    """When the version was made that counted at t; t itself where there is none."""
    return last_version(name, t)[1] or t


def lease_of(args):
    m = re.search(r"--lease[ =]([0-9]+)", args)
    return float(m[1]) if m else 60.0


def held_for(name, args, r):
    """For how long others have to take the last version for held: its lease, or 60 s where a cut came between it and its record."""
    version, _ = last_version(name)
    try:    # the record of a version lies in the directory that its maker made in the one before it
        if os.path.getsize(f"{DRIVE.on_server}/{name}.versions/{version - 1:020}/next/record"):
            return lease_of(args)
    except OSError:
        pass
    if not any("no record" in p for p in r.parts):
        r.figure("once the cut came between a version and its record: no record, held for 60 s")
    return 60.0


class NeverRan(Exception):
    """The first instance did not get to its command."""


def ready(clients):
    """A client that was cut off reaches its server again some time after the links are back."""
    heal()
    for c in clients:
        c.sh(f"d={DRIVE.mount_point}/ready.$$.{time.time_ns()}; timeout -s KILL 150 mkdir $d && rmdir $d", timeout=180)


def begin(kind, args="--lease 15s", probe="-b 20", standbys=2, settle=4.0, extra=""):
    """A holder on the first client, standbys on the others, which have looked at least once."""
    clients = three()
    fresh([*clients, Server()])
    ready(clients)
    name = new_lock(kind)
    holder = Instance(clients[0], on_drive(name), args + extra, probe)
    run = wait_run(holder)
    if not run:
        raise NeverRan(holder.log(holder.begun))
    for c in clients[1:1 + standbys]:
        Instance(c, on_drive(name), args, probe)
    until(lambda: all("standing by" in i.text() for i in Instance.all[1:]), 40, 0.2)
    time.sleep(settle - 2)
    return clients, name, holder, run


def since(t, x):
    return None if x is None else (x - t) / 1e9


# ---------------------------------------------------------------- set-up

@scenario
def up(lease="20", grace="20"):
    """The server (with NFSv4's lease and grace) and three clients that have mounted it."""
    print("    " + DRIVE.serve(lease, grace))
    for c in three():
        out = DRIVE.mount(c)
        print("    ", c.name, out, c.sh(f"grep ' {DRIVE.mount_point} ' /proc/self/mountinfo | sed 's/.* - //'"))
    print(f"    binary: {sh(BINARY + ' --version')}")


@scenario
def race(names="120"):
    """Two clients make the same directories at the same moments: who won."""
    a, b, _ = three()
    r = Result(DRIVE.name, f"race of two makers, {names} names")
    at, d = time.time() + 6, f"{DRIVE.mount_point}/race{time.time_ns()}"
    me = os.path.dirname(os.path.abspath(__file__))
    jobs = [f"{' '.join(c.enter())} python3 {me}/race.py {d} {c.name} {names} {at} &" for c in (a, b)]
    print(sh(" ".join(jobs) + " wait"))
    x, y = (json.load(open(f"{RUN}/race.{c.name}")) for c in (a, b))
    both, nobody = set(x["won"]) & set(y["won"]), set(range(int(names))) - set(x["won"]) - set(y["won"])
    r.expect(not both, "two winners")
    r.expect(not nobody, "no winner")
    r.expect(not x["other"] and not y["other"], "other errors")
    r.figure(f"both {len(both)}, first {len(x['won'])}, second {len(y['won'])}, nobody {len(nobody)}, other errors {x['other'][:1] + y['other'][:1]}")
    r.say()


@scenario
def news(path="hint"):
    """How soon one client sees what another wrote in place (fresh opens, every 0.1 s)."""
    a, b, _ = three()
    r = Result(DRIVE.name, "news of a file written in place")
    me, f = os.path.dirname(os.path.abspath(__file__)), f"{DRIVE.mount_point}/{path}{time.time_ns()}"
    out = sh(f"{' '.join(a.enter())} python3 {me}/hint.py w {f} & {' '.join(b.enter())} python3 {me}/hint.py r {f}; wait")
    r.expect("none" not in out, "no news seen")
    r.figure(out)
    r.say()


# ---------------------------------------------------------------- hand-over

@scenario
def start(n="5"):
    """From the start of trafficcop to the start of its command."""
    r = Result(DRIVE.name, "start to command")
    for where in ("server's own disk", "drive"):
        took = []
        for _ in range(int(n)):
            a = three()[0]
            fresh([a])
            ready([a])
            lock = on_drive(new_lock("s")) if where == "drive" else f"{RUN}/local{time.time_ns()}"
            i = Instance(a, lock, "--lease 15s" if where == "drive" else "", "-1")
            i.wait(30)
            m = mains()
            took.append(since(i.begun, m[0].start) if m else None)
            r.expect(m, "the command did not run")
        r.figure(f"{where} {figures(took)} s")
    r.say()


def hand_over(how, n, args, probe, limit, label):
    after_event, after_end, judged = [], [], []
    r = Result(DRIVE.name, label)
    statuses = []
    for k in range(int(n)):
        clients, name, holder, run = begin("h", args, probe, settle=4 + k * 0.37)
        g = holder.guardian()
        t = now()
        if how == "exit":
            os.kill(run.pid, signal.SIGUSR1)
        elif how in ("term", "drain"):
            holder.kill(15)
        elif how == "kill9":
            holder.kill(9)
        elif how == "guardian":
            os.kill(g, 9)
        elif how == "both":
            os.kill(g, 19)
            holder.kill(9)
            os.kill(g, 9)
        nxt = wait_next(t, 100, run.owner)
        last = last_beat(run.owner)
        renewed = last_renewal(name, t)
        if nxt:
            judged.append({"drain": since(last, nxt.start), "both": since(renewed, nxt.start)}.get(how, since(t, nxt.start)))
        else:
            r.expect(False, "nobody ran again")
        after_event.append(since(t, nxt and nxt.start))
        after_end.append(since(last, nxt and nxt.start))
        time.sleep(0.5)
        holder.wait(20)
        statuses.append(holder.rc)
        r.close_run(clients)
        if k == 0 or r.wrong or judged and judged[-1] > limit + SLACK:
            show(t)
    r.expect(not judged or median(judged) <= limit + SLACK, f"later than {limit:.1f} s")
    r.figure(f"next start after the event {figures(after_event)} s, after the old command's last beat {figures(after_end)} s, status {sorted(set(map(str, statuses)))}")
    r.say()


@scenario
def handover(how="exit", n="5", args="--lease 15s", probe="-b 20"):
    """how: exit | term | kill9 (of the supervisor) | guardian | both (supervisor and guardian at once: the lease has to run out)"""
    limit = {"both": lease_of(args) + POLL}.get(how, POLL)
    hand_over(how, n, args, probe, limit, f"hand-over, {how}, {args}")


@scenario
def drain(n="3", args="--lease 15s --grace 20s", probe="-b 20 -g 8000"):
    """A drain of 8 s: a standby looks more often, and starts within half a poll of its end."""
    hand_over("drain", n, args, probe, 1.0, f"hand-over with 8 s of drain, {args}")


# ---------------------------------------------------------------- cut off

@scenario
def cut(away="40", args="--lease 15s --grace 5s", probe="-b 20 -T -I", n="3", again="yes", hold="4"):
    """The holder is cut off past its lease. Then it is back, the others end, and it runs again."""
    r = Result(DRIVE.name, f"cut off for {away} s, {args}, probe {probe}")
    dead_at, from_renewal, from_cut, rejoined = [], [], [], []
    for k in range(int(n)):
        clients, name, holder, run = begin("c", args, probe, settle=float(hold) + 1.3 * k)
        clients[0].cut()
        t = now()
        renewed = last_renewal(name, now())
        lease = held_for(name, args, r)
        time.sleep(float(away))
        hanging = stuck()
        t1 = now()
        heal()
        nxt = wait_next(t, 60 if lease == 60 else 20, run.owner)
        last = last_beat(run.owner)
        dead_at.append(since(renewed, last))
        from_cut.append(since(t, nxt and nxt.start))
        from_renewal.append(since(renewed, nxt and nxt.start))
        r.expect(nxt, "nobody ran again")
        r.expect(not nxt or from_renewal[-1] <= lease + POLL + SLACK, "next start after lease + poll")
        r.expect(dead_at[-1] <= lease_of(args), "tree alive past the lease")
        time.sleep(8)
        r.expect(holder.rc is None, f"the cut-off one ended with {holder.rc}")
        if again == "yes" and holder.rc is None:
            t2 = now()
            for i in Instance.all[1:]:
                i.kill(15)
            back = wait_run(holder, 40, t2)
            rejoined.append(since(t2, back and back.start))
            r.expect(back, "the cut-off one did not run again")
            time.sleep(1)
        r.close_run(clients)
        if k == 0 or r.wrong:
            show(t)
            print(f"    healed at {since(t, t1):.1f}; hanging before that:\n{hanging}")
            print("    kernel:", sh("dmesg | tail -8 | grep -iE 'nfs|lock|cifs' || true"))
    r.figure(f"next start after the last renewal {figures(from_renewal)} s, after the cut {figures(from_cut)} s; old tree's last beat after the last renewal {figures(dead_at)} s; it runs again {figures(rejoined)} s after the others were asked to end")
    r.say()


@scenario
def exit70(args="--lease 15s --if-lost exit", n="3"):
    """Cut off with --if-lost exit: it ends by itself, with 70."""
    r = Result(DRIVE.name, f"cut off, {args}")
    took, statuses = [], []
    for k in range(int(n)):
        clients, name, holder, run = begin("x", args, settle=3 + k)
        clients[0].cut()
        t = now()
        renewed = last_renewal(name, now())
        held_for(name, args, r)
        holder.wait(lease_of(args) + 12)
        took.append(since(renewed, holder.ended))
        statuses.append(holder.rc)
        hanging = stuck()
        r.expect(holder.rc == 70, f"status {holder.rc}")
        r.expect(holder.ended and took[-1] <= lease_of(args) + SLACK, "ended after its lease")
        nxt = wait_next(t, 60, run.owner)
        r.expect(nxt, "nobody ran again")
        heal()
        r.close_run(clients)
        if k == 0 or r.wrong:
            show(t)
            print("    hanging:\n" + hanging)
    r.figure(f"status {sorted(set(map(str, statuses)))}, ended {figures(took)} s after the last renewal")
    r.say()


@scenario
def stop_while_cut(probe="-b 20", args="--lease 15s --grace 5s", n="3"):
    """SIGTERM to the holder while it is cut off: gone within its grace."""
    r = Result(DRIVE.name, f"SIGTERM while cut off, {args}, probe {probe}")
    took, statuses, nexts = [], [], []
    for k in range(int(n)):
        clients, name, holder, run = begin("w", args, probe, settle=4)
        clients[0].cut()
        renewed = last_renewal(name, now())
        lease = held_for(name, args, r)
        time.sleep(1 + k * 2)
        t = now()
        holder.kill(15)
        holder.wait(25)
        took.append(since(t, holder.ended))
        statuses.append(holder.rc)
        hanging = stuck()
        r.expect(holder.ended and took[-1] <= 5 + SLACK, "not gone within its grace")
        nxt = wait_next(t, 60, run.owner)
        nexts.append(since(renewed, nxt and nxt.start))
        r.expect(nxt, "nobody ran again")
        r.expect(not nxt or nexts[-1] <= lease + POLL + SLACK, "next start after lease + poll")
        heal()
        time.sleep(2)
        r.close_run(clients)
        if k == 0 or r.wrong:
            show(t)
            print("    hanging:\n" + hanging)
    r.figure(f"gone after {figures(took)} s, status {sorted(set(map(str, statuses)))}; next start after the last renewal {figures(nexts)} s")
    r.say()


@scenario
def verbs(away="22", n="3"):
    """status, list, doctor and run -n on a machine that is cut off, with a holder on it that competes again: each answers within 10 s."""
    r = Result(DRIVE.name, "verbs while cut off")
    took = {}
    for k in range(int(n)):
        clients, name, holder, run = begin("v", "--lease 15s")
        lock = on_drive(name)
        clients[0].cut()
        t = now()
        time.sleep(float(away) if k else 1)
        for verb, line in (("status", f"status --file {lock}"), ("list", f"list --file {DRIVE.mount_point}"), ("doctor", f"doctor --file {lock}"), ("run -n", f"run -n --file {lock} -- true")):
            q = now()
            out = clients[0].sh(f"timeout -s KILL 30 {BINARY} {line} 2>&1; echo status $?", timeout=60)
            took.setdefault(verb, []).append(since(q, now()))
            r.expect(took[verb][-1] <= 10 + SLACK, f"{verb} took longer than 10 s")
            r.expect("status 137" not in out, f"{verb} had to be killed")
            if k == 0 or r.wrong:
                print(f"    {verb} ({took[verb][-1]:.1f} s):\n      " + out.replace("\n", "\n      "))
        r.expect(not k or holder.rc is None, f"the holder ended with {holder.rc}")
        heal()
        time.sleep(4)
        r.close_run(clients)
        if k == 0 or r.wrong:
            show(t)
    r.figure(", ".join(f"{v} {figures(x)} s" for v, x in took.items()))
    r.say()


@scenario
def writer(away="40", args="--lease 15s"):
    """The command itself writes to the drive, and hangs in the kernel with it."""
    r = Result(DRIVE.name, f"the command writes to the drive, cut off for {away} s, {args}")
    clients = three()
    fresh(clients)
    ready(clients)
    name = new_lock("d")
    cmd = f"sh -c '{PROBE} {JOURNAL} {clients[0].name} -b 20 & while :; do dd if=/dev/zero of={DRIVE.mount_point}/out bs=64k count=16 conv=fsync 2>/dev/null; done'"
    holder = Instance(clients[0], on_drive(name), args, cmd=cmd)
    run = wait_run(holder)
    for c in clients[1:]:
        Instance(c, on_drive(name), args)
    time.sleep(6)
    clients[0].cut()
    t = now()
    renewed = last_renewal(name, t)
    time.sleep(float(away))
    hanging = stuck()
    nxt = wait_next(t, 1, run.owner)
    heal()
    time.sleep(10)
    r.expect(nxt, "nobody ran again")
    r.expect(holder.rc is None, f"the cut-off one ended with {holder.rc}")
    r.figure(f"next start after the last renewal {figures([since(renewed, nxt and nxt.start)])} s, status of the cut-off one {holder.rc}")
    r.close_run(clients)
    r.say()
    show(t)
    print("    hanging before the heal:\n" + hanging)


@scenario
def machine_dies(args="--lease 15s", n="3"):
    """The holder's machine is gone: cut off, and every process on it killed."""
    r = Result(DRIVE.name, f"the holder's machine dies, {args}")
    from_event, from_renewal = [], []
    for k in range(int(n)):
        clients, name, holder, run = begin("m", args, "-b 20 -T", settle=4 + 1.7 * k)
        clients[0].cut()
        t = now()
        for p in clients[0].processes():
            try:
                os.kill(p, 9)
            except OSError:
                pass
        renewed = last_renewal(name, now())
        lease = held_for(name, args, r)
        nxt = wait_next(t, 90, run.owner)
        from_event.append(since(t, nxt and nxt.start))
        from_renewal.append(since(renewed, nxt and nxt.start))
        r.expect(nxt, "nobody ran again")
        r.expect(not nxt or from_renewal[-1] <= lease + POLL + SLACK, "next start after lease + poll")
        heal()
        r.close_run(clients)
        if k == 0 or r.wrong:
            show(t)
    r.figure(f"next start after it died {figures(from_event)} s, after the last renewal {figures(from_renewal)} s")
    r.say()


# ---------------------------------------------------------------- the server

@scenario
def restart(down="0", args="--lease 15s", after="60", dead="no", how="service", n="1"):
    """The server is away for so long: nobody is stopped, and nobody else starts.

    how: service (stopped and started) | link (all clients cut off) | lockd (the lock daemons restarted) | child (the smbd of
    the holder's connection killed) | reset (the holder's connection reset).  dead yes: another client with a locked file is
    cut off before, so that the server waits for it in its grace period.
    """
    label = f"server's {how} away {down} s, {args}" + (", a dead client" if dead != "no" else "")
    r = Result(DRIVE.name, label)
    tenures, away, gaps = [], [], []
    for k in range(int(n)):
        clients, name, holder, run = begin("r", args, standbys=1 if dead != "no" else 2, settle=6 + 1.1 * k)
        other = clients[2]
        if dead != "no":
            other.sh(f"(exec 9<>{DRIVE.mount_point}/other; flock -n 9; exec sleep 1000) >/dev/null 2>&1 & echo $! >{RUN}/other.pid; sleep 2")
            other.cut()
            time.sleep(1)
        t = now()
        if how == "service":
            sh(DRIVE.stop_service)
            t1 = now()
            time.sleep(float(down))
            sh(DRIVE.start_service)
        elif how == "link":
            for c in clients:
                c.cut()
            t1 = now()
            time.sleep(float(down))
            heal()
        elif how == "lockd":
            t1 = now()
            print("    ", sh("pgrep -x lockd; pkill -KILL -x lockd; systemctl restart rpc-statd; sleep 1; pgrep -x lockd; dmesg | tail -2"))
        elif how == "child":
            t1 = now()
            print("    ", sh(f"smbstatus -p 2>/dev/null | grep {clients[0].ip}; smbstatus -p 2>/dev/null | awk '$4==\"{clients[0].ip}\"{{print $1}}' | sort -u | xargs -r kill -9"))
        elif how == "reset":
            t1 = now()
            print("    ", sh(f"ss -K dst {clients[0].ip} sport = 445"))
        t2 = now()
        away.append(since(t, t2))
        late = Instance(clients[1], on_drive(name), args, name="late")
        time.sleep(float(after))
        stops = [s for s in signals(run.owner)]
        last = last_beat(run.owner)
        tenures.append(len(mains()))
        room = ROOM[lease_of(args)]
        if away[-1] > room - 1:
            r.figure(f"away for {away[-1]:.1f} s, the room for retries is {room} s: not judged")
        else:
            r.expect(not stops, "the holder's command was stopped")
            r.expect(len(mains()) == 1, f"{len(mains())} tenures")
            r.expect(since(last, now()) < 2, "the holder's command is gone")
        if late.rc == 69 and dead != "no":
            r.figure("an instance that was started in the grace period ended with 69 (service out of reach)")
        else:
            r.expect(late.rc is None, f"a late standby ended with {late.rc}")
        # and the lock is in order: the next one gets it
        te = now()
        holder.kill(15)
        nxt = wait_next(te, 60, run.owner)
        gaps.append(since(te, nxt and nxt.start))
        r.expect(nxt or tenures[-1] > 1, "nobody ran afterwards")
        heal()
        r.close_run(clients)
        other.sh(f"kill $(cat {RUN}/other.pid) 2>/dev/null")
        if k == 0 or r.wrong:
            print(f"    stop took {since(t, t1):.1f} s, back {since(t, t2):.1f} s after the fault, the old tree seen until {since(t, last):.1f}")
            show(t)
            print("    kernel:", sh("dmesg | tail -12 | grep -iE 'nfs|lock|lost|grace|cifs' || true"))
    r.figure(f"away {figures(away)} s, tenures {tenures}; hand-over at its end {figures(gaps)} s after SIGTERM")
    r.say()


@scenario
def long_restart(down="45", args="--lease 15s", n="1"):
    """The server is away for longer than the lease: everybody stops in time, somebody runs again afterwards."""
    r = Result(DRIVE.name, f"server away {down} s, longer than {args}")
    backs = []
    for k in range(int(n)):
        clients, name, holder, run = begin("R", args, "-b 20 -T -I", extra=" --grace 3s")
        t = now()
        sh(DRIVE.stop_service)
        renewed = last_renewal(name, now())
        time.sleep(float(down))
        hanging = stuck()
        sh(DRIVE.start_service)
        t2 = now()
        last = last_beat(run.owner)
        nxt = wait_next(t, 150, run.owner)
        r.expect(since(renewed, last) <= lease_of(args), "tree alive past the lease")
        r.expect(nxt, "nobody ran again")
        for i in Instance.all:
            r.expect(i.rc is None, f"{i.name} ended with {i.rc}")
        backs.append(since(t2, nxt and nxt.start))
        time.sleep(5)
        r.close_run(clients)
        show(t)
        print("    hanging before the start:\n" + hanging)
    r.figure(f"next start {figures(backs)} s after the server was back")
    r.say()


# ---------------------------------------------------------------- one path, two ways to it

@scenario
def server_disk(args="--lease 15s", n="3"):
    """A client holds the lock; an instance on the server names the same file on the server's own disk: it obeys what PATH says."""
    r = Result(DRIVE.name, f"the same file on the server's own disk, {args}")
    to_server, to_client = [], []
    for k in range(int(n)):
        a = three()[0]
        s = Server()
        fresh([a, s])
        ready([a])
        name = new_lock("b")
        holder = Instance(a, on_drive(name), args)
        run = wait_run(holder)
        other = Instance(s, f"{DRIVE.on_server}/{name}", args)
        time.sleep(6)
        r.expect(len(mains()) == 1, "the server's instance ran beside the client's")
        r.expect(other.rc is None, f"the server's instance ended with {other.rc}")
        q = s.sh(f"{BINARY} run -n --file {DRIVE.on_server}/{name} -- true 2>&1; echo status $?")
        r.expect("status 75" in q, "run -n on the server: not 75")
        t = now()
        holder.kill(15)
        nxt = wait_run(other, 60, t)
        to_server.append(since(t, nxt and nxt.start))
        r.expect(nxt, "the server's instance did not take over")
        r.expect(not nxt or to_server[-1] <= POLL + SLACK, "taken over after a poll")
        again = Instance(a, on_drive(name), args, name="again")
        time.sleep(6)
        r.expect(len(mains()) == 2, "a client ran beside the server's instance")
        t3 = now()
        other.kill(9)
        back = wait_run(again, 60, t3)
        to_client.append(since(t3, back and back.start))
        r.expect(back, "the client did not take over from the server's")
        r.expect(not back or to_client[-1] <= POLL + SLACK, "taken over from the server's after a poll")
        time.sleep(1)
        r.close_run([a, s])
        if k == 0 or r.wrong:
            print("    run -n on the server: " + q)
            show(t)
    r.figure(f"client to server {figures(to_server)} s after SIGTERM, server to client {figures(to_client)} s after kill -9")
    r.say()


@scenario
def two_protocols(old=""):
    """PATH is a local lock, held by an instance on the server's disk: a client that names it refuses with 69, and runs nothing. And the other way round."""
    r = Result(DRIVE.name, "two protocols at one path" + (", the other is an older trafficcop" if old else ""))
    a, s = three()[0], Server()
    fresh([a, s])
    ready(three())
    t = now()
    name = new_lock("p")
    if old:     # the older one holds the drive's file with a kernel lock
        b = three()[1]
        holder = Instance(b, on_drive(name), "", binary=old)
    else:
        holder = Instance(s, f"{DRIVE.on_server}/{name}")
    run = wait_run(holder)
    if not run:
        print(holder.log(t))
        r.expect(False, "the first one never ran")
    time.sleep(2)
    answers = []
    for label, extra in (("run -n", "-n"), ("run", "")):
        q = now()
        out = a.sh(f"timeout -s KILL 30 {BINARY} run {extra} --file {on_drive(name)} -- true 2>&1; echo status $?")
        answers.append((label, since(q, now()), out))
        r.expect("status 69" in out, f"{label}: not 69")
        print(f"    {label}: {out}")
    for verb in ("status", "doctor"):
        print(f"    {verb}: " + a.sh(f"timeout -s KILL 30 {BINARY} {verb} --file {on_drive(name)} 2>&1; echo status $?"))
    r.expect(run and len(mains()) == 1, "more than one ran")
    holder.kill(15)
    holder.wait(20)
    out = a.sh(f"timeout -s KILL 30 {BINARY} run -n --file {on_drive(name)} -- true 2>&1; echo status $?")
    print(f"    after its release, run -n: {out}")
    free = out.rsplit(" ", 1)[-1]
    # the other way round: the client made it
    name = new_lock("q")
    first = Instance(a, on_drive(name), "--lease 15s")
    wait_run(first)
    time.sleep(1)
    if old:
        out = three()[1].sh(f"timeout -s KILL 30 {old} run -n --file {on_drive(name)} -- true 2>&1; echo status $?")
        r.expect("status 0" not in out, "the older one ran beside it")
    else:
        out = s.sh(f"timeout -s KILL 30 {BINARY} run -n --file {DRIVE.on_server}/{name} -- true 2>&1; echo status $?")
        r.expect("status 75" in out, "reversed: not 75")
    print(f"    reversed: {out}")
    reversed_status = out.rsplit(" ", 1)[-1]
    first.kill(15)
    first.wait(20)
    r.figure(", ".join(f"{label} {'69' if 'status 69' in out else out.rsplit(' ', 1)[-1]} after {took:.1f} s" for label, took, out in answers) + f"; after the release {free}; reversed {reversed_status}")
    r.close_run([a, s])
    r.say()
    show(t)


@scenario
def paused(away="40", args="--lease 15s --grace 3s"):
    """Every process on the holder's machine stands still past the lease, and goes on: how long does the old command run then? Not promised: a figure."""
    r = Result(DRIVE.name, f"machine stands still for {away} s, {args} (figure only)")
    clients, name, holder, run = begin("z", args, "-b 20 -T -I")
    t = now()
    for p in clients[0].processes():
        os.kill(p, 19)
    time.sleep(float(away))
    t1 = now()
    for p in clients[0].processes():
        os.kill(p, 18)
    time.sleep(6)
    ran_on = max([n for x in lives().values() if x.owner == run.owner for n in [x.last]] + [t1])
    nxt = wait_next(t, 1, run.owner)
    r.figure(f"old tree's last beat {since(t1, ran_on):.2f} s after it went on (next start {figures([since(t, nxt and nxt.start)])} s after the pause began)")
    r.expect(nxt, "nobody ran again")
    r.expect(holder.rc is None, f"the holder ended with {holder.rc}")
    r.survivors = end_all(clients)
    beside = [x for x in lives().values() if x.owner == run.owner]
    r.overlap = sum(max(0.0, since(t1, x.last)) for x in beside if x.role == "main")
    r.say()
    show(t)


@scenario
def first_start(n="17", args="-n --lease 15s"):
    """The first start of a lock: three instances at the same moment on a new name, each with -n."""
    r = Result(DRIVE.name, f"first start, {n} times three at once")
    clients = three()
    # Where the machine stands still, a second one can run when the first has ended: the overlap is judged.
    statuses, words, idle = [], [], 0
    for _ in range(int(n)):
        fresh(clients)
        lock = on_drive(new_lock("f"))
        at = time.time() + 1.5
        for c in clients:
            Instance(c, lock, args, f"-b 20 -d 1000", binary=f"{sys.executable} -c 'import os,sys,time; time.sleep(max(0, {at} - time.time())); os.execv(sys.argv[1], sys.argv[1:])' {BINARY}")
        for i in Instance.all:
            i.wait(60)
        statuses += [i.rc for i in Instance.all]
        idle += not mains()
        words += [i.text() for i in Instance.all if i.rc not in (0, 75)]
    r.expect(not words, "losers with another status than 75")
    r.figure("statuses: " + " ".join(f"{statuses.count(rc)}x {rc}" for rc in sorted(set(statuses), key=str)))
    r.figure(f"rounds in which none ran: {idle}")
    r.close_run(clients)
    r.say()
    print("\n".join(sorted(set(words))[:3]))


@scenario
def bell(doorbell="yes", args="--lease 15s", n="3"):
    """The machine of the holder dies (cut off, all its processes killed) while a standby listens to its doorbell."""
    r = Result(DRIVE.name, f"machine dies {'with' if doorbell == 'yes' else 'without'} a doorbell, {args}")
    took = []
    sh("sysctl -qw net.ipv4.ip_forward=1")
    for c in three():
        c.sh(f"ip route replace default via {c.server}")
    for k in range(int(n)):
        ring = (lambda c: f" --doorbell={c.ip}") if doorbell == "yes" else (lambda c: "")
        clients = three()
        fresh([*clients, Server()])
        ready(clients)
        name = new_lock("b")
        holder = Instance(clients[0], on_drive(name), args + ring(clients[0]))
        if not wait_run(holder):
            raise NeverRan(holder.log(holder.begun))
        standby = Instance(clients[1], on_drive(name), args + " -v" + ring(clients[1]))
        until(lambda: "standing by" in standby.text(), 40, 0.2)
        time.sleep(20 + k * 1.7)
        clients[0].cut()
        t = now()
        for p in clients[0].processes():
            try:
                os.kill(p, 9)
            except ProcessLookupError:
                pass
        held = held_for(name, args, r)
        renewed = last_renewal(name, t)
        x = wait_next(t, 150)
        took.append(since(renewed, x.start if x else None))
        r.expect(x and since(renewed, x.start) < held + POLL + SLACK, "later than lease + poll")
        r.close_run(clients)
        show(t)
    r.figure(f"next {figures(took)} s after the last renewal")
    r.say()


@scenario
def two_accounts(args="--lease 15s"):
    """SMB: two clients with an account each, whose files are each account's own."""
    r = Result(DRIVE.name, "two accounts of the server")
    a, b = three()[:2]
    ready([a, b])
    sh("for u in alice bob; do id $u >/dev/null 2>&1 || useradd -M $u; (echo tc; echo tc) | smbpasswd -a -s $u; done; mkdir -p /srv/two; chmod 777 /srv/two; "
       "grep -q '^.two.' /etc/samba/smb.conf || printf '[two]\npath = /srv/two\nread only = no\n' >>/etc/samba/smb.conf; smbcontrol smbd reload-config; sleep 2")
    for c, u in ((a, "alice"), (b, "bob")):
        print("    ", c.sh(f"mkdir -p /mnt/two; mountpoint -q /mnt/two || mount -t cifs //{c.server}/two /mnt/two -o username={u},password=tc,{DRIVE.options}; grep /mnt/two /proc/self/mountinfo"))
    fresh([a, b])
    lock = f"/mnt/two/{new_lock('t')}"
    one = Instance(a, lock, args, cmd="sleep 40")
    until(lambda: "in control" in one.text(), 40)
    print(sh(f"ls -ln /srv/two/{os.path.basename(lock)}.versions"))
    two = Instance(b, lock, args, cmd="true")
    print("    run -n by the second while the first holds:", b.sh(f"{BINARY} run -n --file {lock} {args} -- true; echo status $?"))
    print("    doctor by the second:\n" + b.sh(f"{BINARY} doctor --file {lock}; echo status $?"))
    one.wait(90)
    two.wait(40)
    r.expect(two.rc in (69, 77), "the second is not refused")
    r.figure(f"the second: status {two.rc}" + ("" if two.rc is not None else ", stands by still 40 s after the release"))
    print(b.sh(f"{BINARY} run -n --file {lock} {args} -- true; echo status $?"))
    show(two.begun)
    r.close_run([a, b])
    r.say()


@scenario
def operations(seconds_each="30"):
    """Requests to an NFS server for a renewal and for a look without news, from the mount's own counts."""
    r = Result(DRIVE.name, "requests to the server")
    clients = three()
    fresh(clients)

    def counts(c):
        text = c.sh(f"awk '/ mounted on .* with fstype/{{on=index($0, \" {DRIVE.mount_point} \")}} on' /proc/self/mountstats")
        return {m[1]: int(m[2]) for m in re.finditer(r"^\s+([A-Z_]+): (\d+) ", text, re.M)}
    name = new_lock("o")
    holder = Instance(clients[0], on_drive(name), "--lease 15s")
    wait_run(holder)
    Instance(clients[1], on_drive(name), "--lease 15s")
    time.sleep(8)
    before, v0, t = [counts(c) for c in clients[:2]], last_version(name)[0], now()
    time.sleep(float(seconds_each))
    after, v1 = [counts(c) for c in clients[:2]], last_version(name)[0]
    made, looks = v1 - v0, since(t, now()) / 2
    for label, k, per in (("a renewal", 0, made), ("a look", 1, looks)):
        delta = {op: after[k][op] - before[k].get(op, 0) for op in after[k] if after[k][op] - before[k].get(op, 0) > 0 and op != "NULL"}
        r.figure(f"{label}: {sum(delta.values()) / max(1, per):.1f} requests ({', '.join(f'{op} {n / max(1, per):.1f}' for op, n in sorted(delta.items(), key=lambda x: -x[1]))})")
    r.figure(f"{made} renewals in {seconds_each} s")
    r.close_run(clients)
    r.say()


if __name__ == "__main__":
    DRIVE = (Smb if sys.argv[1] == "smb" else Nfs)(sys.argv[1])
    try:
        SCENARIOS[sys.argv[2]](*sys.argv[3:])
    except NeverRan as e:
        print(f"R {DRIVE.name} | {' '.join(sys.argv[2:])} | FAIL: the first instance never ran its command |  |  | \n{e}")
