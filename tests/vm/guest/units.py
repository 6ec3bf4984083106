#!/usr/bin/env python3
"""In the machine: the examples as real systemd units. usage: units.py SCENARIO...

Each scenario prints lines that begin with R (see harness.Result); with them go the units' logs and the journal.
"""
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import JOURNAL, PROBE, Result, fresh, last_beat, lives, mains, now, overlap, sh, show, until

UNITS = "/etc/systemd/system"
A, B = "trafficcop@imp.service", "trafficcop@imp2.service"
SCENARIOS = {}


def scenario(f):
    SCENARIOS[f.__name__] = f
    return f


def prop(unit, name):
    return sh(f"systemctl show -p {name} --value {unit}")


def state(unit):
    return sh(f"systemctl show -p ActiveState,SubState,Result,MainPID,StatusText,NRestarts,ExecMainStatus,ExecMainCode,WatchdogUSec {unit}").replace("\n", " ")


def log(unit, since):
    return sh(f"journalctl -u {unit} --no-pager -o short-monotonic --since '@{since}' | cut -c1-230 | tail -45")


def tree(unit):
    return sh(f"systemd-cgls --no-pager -l -u {unit} 2>&1 | cut -c1-160")


def wipe(*units):
    for u in units:
        sh(f"systemctl stop {u}; systemctl reset-failed {u}; rm -rf {UNITS}/{u}.d /run/systemd/system/{u}.d")
    sh("systemctl daemon-reload")


def drop_in(unit, text):
    os.makedirs(f"{UNITS}/{unit}.d", exist_ok=True)
    with open(f"{UNITS}/{unit}.d/test.conf", "w") as f:
        f.write(text)
    sh("systemctl daemon-reload")


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)


def install(names=("imp", "imp2"), env="", probe="-b 20", script=None, lock="/srv/share/unit.lock"):
    sh("cp /opt/tc/trafficcop /usr/bin/; cp /opt/tc/examples/trafficcop@.service /opt/tc/examples/timer/* /opt/tc/examples/work/*.service /etc/systemd/system/; systemctl daemon-reload")
    for n in names:
        write(f"/etc/trafficcop/{n}.env", f"TRAFFICCOP_FILE={lock}\n{env}\n")
        write(f"/usr/local/bin/{n}", "#!/bin/sh\n" + (script or f"exec {PROBE} {JOURNAL} {n} {probe}") + "\n", 0o755)


def begin():
    wipe(A, B)
    fresh([])
    return time.time()


def run_started(limit=20):
    return until(lambda: mains(), limit)


def survivors(r):
    left = sh("pgrep -af '^/opt/tc/probe'")
    r.survivors = len(left.splitlines())
    r.expect(not left, "survivors")
    r.overlap = overlap()
    r.expect(r.overlap == 0, "OVERLAP")
    if left:
        print("    left over: " + left)


@scenario
def basics():
    s = begin()
    install()
    r = Result("systemd", "start, reload, stop")
    t = now()
    sh(f"systemctl start {A}")
    t1 = now()
    m = run_started()[0]
    sh(f"systemctl start {B}")
    time.sleep(1)
    r.expect(prop(A, "ActiveState") == "active" and prop(B, "ActiveState") == "active", "not both active")
    r.figure(f"systemctl start returned after {(t1 - t) / 1e6:.0f} ms; {prop(A, 'StatusText')} / {prop(B, 'StatusText')}")
    print(tree(A))
    t = now()
    print(sh(f"systemctl reload {A}; echo status $?; systemctl reload-or-restart {A}; echo status $?"))
    nxt = until(lambda: next((x for x in mains() if x.start > t), None), 20)
    r.expect(nxt, "nobody ran after reload-or-restart")
    r.figure(f"next start {(nxt.start - t) / 1e9 if nxt else -1:.2f} s after reload-or-restart")
    time.sleep(2)
    t2 = now()
    sh(f"systemctl stop {B} {A}")
    r.figure(f"stop of both {(now() - t2) / 1e9:.2f} s")
    survivors(r)
    r.say()
    print(state(A), state(B))
    show(t)
    print(log(A, s))
    print(log(B, s))


@scenario
def shutdown():
    """A unit and its share are stopped at the same time, as at a shutdown. A client on another machine stands by."""
    from harness import Client, Instance, wait_next
    import scenarios
    scenarios.DRIVE = d = scenarios.Nfs("nfs4")
    begin()
    d.serve("20", "20")
    c = Client("a")
    d.mount(c)
    name = scenarios.new_lock("u")
    write(f"{UNITS}/mnt-share.mount", "[Unit]\nDefaultDependencies=no\nBefore=remote-fs.target umount.target\nConflicts=umount.target\n[Mount]\nWhat=127.0.0.1:/\nWhere=/mnt/share\nType=nfs4\n")
    install(("imp",), lock=f"/mnt/share/{name}", env="TRAFFICCOP_LEASE=15s", probe="-b 20 -g 3000")
    sh("systemctl daemon-reload; systemctl start mnt-share.mount remote-fs.target", True)
    r = Result("systemd", "shutdown with the lock on a share")
    sh(f"systemctl start {A}")
    m = run_started()
    r.expect(m, "the unit never ran")
    Instance(c, f"/mnt/nfs/{name}", "--lease 15s", name="other")
    time.sleep(8)
    s, t = time.time(), now()
    # In this order: systemctl asks for one after the other, and a job is ordered by those that are there already.
    out = sh(f"systemctl stop {A} remote-fs.target mnt-share.mount")
    r.figure(f"stop took {(now() - t) / 1e9:.2f} s {out}")
    x = wait_next(t, 100)
    r.figure(f"next command {(x.start - t) / 1e9 if x else -1:.2f} s after the stop was asked for")
    said = log(A, s)
    r.expect("gave the lock back" in said, "the lease is not given back")
    r.close_run([c])
    r.say()
    print(said)
    wipe(A)


@scenario
def daily_stopped():
    """systemctl stop of the timer's unit while it waits, and while its command runs."""
    D = "trafficcop-daily@imp.service"
    begin()
    install(("imp",), lock="/srv/share/daily.lock", script=f"exec {PROBE} {JOURNAL} imp -b 20")
    r = Result("systemd", "stop of trafficcop-daily@")
    for what in ("that runs", "that waits"):
        sh(f"systemctl reset-failed {D}; rm -f /srv/share/daily.lock")
        import subprocess
        other = subprocess.Popen(["/opt/tc/trafficcop", "run", "-q", "--file", "/srv/share/daily.lock", "--", "sleep", "300"]) if what == "that waits" else None
        time.sleep(2)
        s = time.time()
        sh(f"systemctl start --no-block {D}")
        time.sleep(4)
        sh(f"systemctl stop {D}")
        text = prop(D, "ActiveState") + " " + prop(D, "Result")
        r.expect(prop(D, "ActiveState") == "inactive", f"one {what} is {text}")
        r.figure(f"one {what}: {text}")
        print(log(D, s))
        if other:
            other.terminate()
            other.wait()
    survivors(r)
    r.say()


@scenario
def drain():
    """A drain of 25 s with TimeoutStopSec=8 and a grace of 40 s; then a command that ignores SIGTERM, grace 12 s with TimeoutStopSec=5."""
    s = begin()
    install(probe="-b 20 -g 25000")
    r = Result("systemd", "drain of 25 s, TimeoutStopSec=8s")
    drop_in(A, "[Service]\nTimeoutStopSec=8s\nEnvironment=TRAFFICCOP_GRACE=40s\n")
    drop_in(B, "[Service]\nTimeoutStopSec=8s\n")
    sh(f"systemctl start {A}")
    m = run_started()[0]
    sh(f"systemctl start {B}")
    time.sleep(1)
    t = now()
    sh(f"systemctl stop --no-block {A}")
    time.sleep(5)
    print(state(A))
    sh(f"systemctl stop {A}")
    took = (now() - t) / 1e9
    time.sleep(1)
    r.expect(24 < took < 40, "the drain was cut short")
    r.expect(next(x for x in mains() if x.owner == m.owner).ended, "the command was killed")
    r.expect(prop(A, "Result") == "success", "Result " + prop(A, "Result"))
    r.figure(f"stop took {took:.1f} s")
    sh(f"systemctl stop {B}", timeout=100)
    survivors(r)
    r.say()
    show(t)
    print(log(A, s))
    print(log(B, s)[-1500:])

    s = begin()
    install(probe="-b 20 -I -T")
    r = Result("systemd", "deaf tree, grace 12 s, TimeoutStopSec=5s")
    drop_in(A, "[Service]\nTimeoutStopSec=5s\nEnvironment=TRAFFICCOP_GRACE=12s\n")
    sh(f"systemctl start {A}")
    run_started()
    time.sleep(1)
    t = now()
    sh(f"systemctl stop {A}")
    took = (now() - t) / 1e9
    r.expect(11 < took < 15, "not ended at its grace")
    r.figure(f"stop took {took:.1f} s, {prop(A, 'Result')}")
    survivors(r)
    r.say()
    show(t)
    print(log(A, s)[-1500:])


def kill_matrix(label, env, lock):
    for sig, who in ((9, "supervisor"), (19, "supervisor"), (19, "both"), (9, "guardian"), (9, "command")):
        s = begin()
        install(probe="-b 20 -T -I" if who != "command" else "-b 20", env=env, lock=f"{lock}{time.time_ns()}")
        r = Result("systemd", f"signal {sig} to {who}, {label}")
        sh(f"systemctl start {A}")
        m = run_started()[0]
        sh(f"systemctl start {B}")
        time.sleep(3)
        pid = int(prop(A, "MainPID"))
        g = int(sh(f"ps -o pid= --ppid {pid}").split()[0])
        t = now()
        for p in {"supervisor": [pid], "both": [pid, g], "guardian": [g], "command": [m.pid]}[who]:
            os.kill(p, sig)
        nxt = until(lambda: next((x for x in mains() if x.start > t), None), 100)
        time.sleep(4)
        r.expect(nxt, "nobody ran again")
        r.figure(f"old tree's last beat {(last_beat(m.owner) - t) / 1e9:.2f} s, next start {(nxt.start - t) / 1e9 if nxt else -1:.2f} s after it")
        print("   ", state(A), "|", state(B))
        sh(f"systemctl stop {B} {A}", timeout=150)
        survivors(r)
        r.say()
        show(t)
        print(log(A, s)[-2200:])


@scenario
def kills():
    kill_matrix("local lock", "", "/srv/share/unit")


@scenario
def kills_shared():
    kill_matrix("--shared", "TRAFFICCOP_SHARED=true", "/srv/share/shared")


@scenario
def shared():
    """The unit with a lease of 60 s: the watchdog is fed; both processes stopped: systemd's watchdog at 20 s, below half the lease."""
    s = begin()
    r = Result("systemd", "watchdog of a unit with a lease of 60 s")
    install(env="TRAFFICCOP_SHARED=true", lock=f"/srv/share/w{time.time_ns()}")
    sh(f"systemctl start {A}")
    m = run_started()[0]
    time.sleep(45)
    r.expect(prop(A, "ActiveState") == "active" and prop(A, "NRestarts") == "0", "not active for 45 s")
    pid = int(prop(A, "MainPID"))
    g = int(sh(f"ps -o pid= --ppid {pid}").split()[0])
    t = now()
    os.kill(pid, 19)
    os.kill(g, 19)
    time.sleep(30)
    dead = (last_beat(m.owner) - t) / 1e9
    r.expect(dead < 25, "alive past the watchdog")
    r.figure(f"both stopped: the command's last beat {dead:.2f} s after it")
    print("   ", state(A))
    sh(f"systemctl stop {A}", timeout=150)
    survivors(r)
    r.say()
    print(log(A, s)[-1800:])


@scenario
def ready():
    """READY=1 in control only; READY=1 from the command; what the command may not say."""
    s = begin()
    r = Result("systemd", "ready=held, ready=command")
    install(env="TRAFFICCOP_READY=held")
    drop_in(B, "[Service]\nTimeoutStartSec=infinity\n")
    sh(f"systemctl start {A}")
    run_started()
    sh(f"systemctl start --no-block {B}")
    time.sleep(3)
    r.expect(prop(A, "ActiveState") == "active" and prop(B, "ActiveState") == "activating", "a standby is ready with ready=held")
    sh(f"systemctl stop {A}")
    r.expect(until(lambda: prop(B, "ActiveState") == "active", 6), "not ready in control")
    survivors_before = overlap()
    script = (f"""sleep 2; systemd-notify --ready --status='warm: 3 of 5'; echo "WATCHDOG_USEC=$WATCHDOG_USEC"; systemd-notify MAINPID=1; systemd-notify STOPPING=1; systemd-notify WATCHDOG=trigger; """
              f"""systemd-notify EXTEND_TIMEOUT_USEC=1; systemd-notify FDSTORE=1; exec {PROBE} {JOURNAL} imp -b 20""")
    s = begin()
    install(names=("imp",), env="TRAFFICCOP_READY=command", script=script)
    drop_in(A, "[Service]\nTimeoutStartSec=infinity\n")
    t = now()
    sh(f"systemctl start {A}")
    took = (now() - t) / 1e9
    run_started()
    time.sleep(25)
    r.expect(took >= 2, "ready before the command was")
    r.expect(prop(A, "ActiveState") == "active" and prop(A, "NRestarts") == "0", "not active 25 s later: what the command said was passed on")
    r.figure(f"ready=command: start took {took:.1f} s; {prop(A, 'StatusText')}")
    sh(f"systemctl stop {A}")
    survivors(r)
    r.overlap = max(r.overlap, survivors_before)
    r.say()
    print(log(A, s))


@scenario
def sockets():
    s = begin()
    r = Result("systemd", "socket activation")
    write(f"{UNITS}/imp.socket", f"[Socket]\nListenStream=/run/imp.sock\nListenStream=127.0.0.1:7777\nService={A}\nFileDescriptorName=web\n[Install]\nWantedBy=sockets.target\n")
    write("/usr/local/bin/serve.py", "import os,socket,sys\nok=os.environ.get('LISTEN_PID')==str(os.getpid())\ns=socket.socket(fileno=3)\nn=0\nwhile n<2:\n  c,_=s.accept(); c.sendall(b'hello from %d token %s own %s\\n'%(os.getpid(),os.environ['TRAFFICCOP_TOKEN'].encode(),str(ok).encode())); c.close(); n+=1\nsys.exit(3)\n")
    install(names=("imp",), env="TRAFFICCOP_RESTART=always\nTRAFFICCOP_STANDBY=env | grep LISTEN; sleep 1000", script="exec python3 /usr/local/bin/serve.py")
    sh("systemctl stop imp.socket; systemctl daemon-reload; systemctl start imp.socket")
    out = []
    for _ in range(5):
        out.append(sh("timeout 20 socat -u UNIX-CONNECT:/run/imp.sock - 2>&1"))
        time.sleep(0.3)
    r.expect(all("own True" in x for x in out), "a call was not answered")
    r.figure(f"{len(out)} calls, two for each run of the command, {len({x.split()[2] for x in out if x.startswith('hello')})} runs")
    sh("systemctl stop imp.socket")
    wipe(A, B)
    r.say()
    print(out)
    print(log(A, s))


SANDBOXES = {
    "as in work@ (DynamicUser, strict)": "DynamicUser=yes\nStateDirectory=tc-imp\nNoNewPrivileges=yes\nProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\nPrivateDevices=yes\nProtectClock=yes\nProtectHostname=yes\nProtectKernelLogs=yes\nProtectKernelModules=yes\nProtectKernelTunables=yes\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\nRestrictSUIDSGID=yes\nLockPersonality=yes\nSystemCallArchitectures=native\nUMask=0077\n",
    "the same and contain=cgroup": "@cgroup",
    "the same and contain=pidns": "@pidns",
    "User=nobody, contain=cgroup": "User=nobody\nEnvironment=TRAFFICCOP_CONTAIN=cgroup\n",
    "User=nobody, NoNewPrivileges, contain=pidns": "User=nobody\nNoNewPrivileges=yes\nEnvironment=TRAFFICCOP_CONTAIN=pidns\n",
    "ProtectControlGroups, auto": "DynamicUser=yes\nProtectControlGroups=yes\n",
    "ProtectProc=invisible ProcSubset=pid": "DynamicUser=yes\nProtectProc=invisible\nProcSubset=pid\n",
    "SystemCallFilter=@system-service": "DynamicUser=yes\nSystemCallFilter=@system-service\nSystemCallErrorNumber=EPERM\nMemoryDenyWriteExecute=yes\nRestrictRealtime=yes\nRestrictNamespaces=yes\nCapabilityBoundingSet=\n",
    "no Delegate, auto": "Delegate=no\n",
    "no Delegate, contain=cgroup": "Delegate=no\nEnvironment=TRAFFICCOP_CONTAIN=cgroup\n",
    "MemoryMax=40M TasksMax=12": "MemoryMax=40M\nTasksMax=12\n",
    "PrivateNetwork, ProtectSystem=strict": "PrivateNetwork=yes\nProtectSystem=strict\n",
}


@scenario
def sandbox():
    """It runs its tree of four and stops it within its grace of 3 s, or refuses in words (a containment asked for by name and not to be had)."""
    strict = next(iter(SANDBOXES.values()))
    sh("chmod 777 /srv/share; rm -f /srv/share/unit.lock; touch /srv/share/unit.lock; chmod 666 /srv/share/unit.lock; chmod 755 /opt/tc")
    for name, settings in SANDBOXES.items():
        if settings.startswith("@"):
            settings = strict + f"Environment=TRAFFICCOP_CONTAIN={settings[1:]}\n"
        s = begin()
        r = Result("systemd", f"sandbox: {name}")
        install(names=("imp",), probe="-b 20 -T -I")
        drop_in(A, "[Service]\n" + settings + "ReadWritePaths=/srv/share /run/tc\nEnvironment=TRAFFICCOP_GRACE=3s\nTimeoutStopSec=10s\nRestart=no\n")
        sh(f"systemctl start {A}")
        run_started(8)
        time.sleep(0.5)
        n, st, said = len(lives()), state(A), log(A, s)
        t = now()
        sh(f"systemctl stop {A}")
        took = (now() - t) / 1e9
        r.expect(n == 4 and took < 6 or n == 0 and "error: " in said, f"{n} processes, stopped in {took:.1f} s")
        r.figure(f"processes {n}, stop took {took:.1f} s" if n else "refused: " + next((x.split("error: ", 1)[1] for x in said.splitlines() if "error: " in x), st)[:140])
        survivors(r)
        r.say()
        print(said[-1200:])


@scenario
def timer():
    begun = begin()
    r = Result("systemd", "timer with --once-per on two units")
    install()
    wipe("trafficcop-daily@nightly.timer", "trafficcop-daily@nightly.service")
    write("/etc/trafficcop/nightly.env", "TRAFFICCOP_FILE=/srv/share/nightly.lock\n")
    write("/usr/local/bin/nightly", f"#!/bin/sh\nexec {PROBE} {JOURNAL} nightly -b 20 -d 6000\n", 0o755)
    verified = sh("systemd-analyze verify /etc/systemd/system/trafficcop-daily@nightly.service /etc/systemd/system/trafficcop-daily@nightly.timer /etc/systemd/system/trafficcop@imp.service /etc/systemd/system/trafficcop-work@orders.service 2>&1 | grep -v -i plymouth | head")
    sh("rm -f /srv/share/nightly.lock; cp /etc/systemd/system/trafficcop-daily@.service /etc/systemd/system/other-daily@.service; systemctl daemon-reload")
    when = sh("date -u -d +8sec '+%Y-%m-%d %H:%M:%S'")
    drop_in("trafficcop-daily@nightly.timer", "[Timer]\nOnCalendar=\nOnCalendar=" + when + " UTC\n")
    sh("systemctl start trafficcop-daily@nightly.timer")
    run_started(30)
    sh("systemctl start --no-block other-daily@nightly.service")
    time.sleep(12)
    r.expect(len(mains()) == 1, f"{len(mains())} runs")
    sh("systemctl start trafficcop-daily@nightly.service")
    time.sleep(1)
    r.expect(len(mains()) == 1, "a second run on the same day")
    r.expect(prop("trafficcop-daily@nightly.service", "Result") == "success", "Result " + prop("trafficcop-daily@nightly.service", "Result"))
    r.figure(f"runs {len(mains())}; systemd-analyze verify: {verified or 'nothing to say'}")
    survivors(r)
    r.say()
    print(log("trafficcop-daily@nightly.service", begun))
    print(log("other-daily@nightly.service", begun))
    wipe("trafficcop-daily@nightly.timer", "trafficcop-daily@nightly.service", "other-daily@nightly.service")


@scenario
def stopped_jobs():
    """A stop of a daily job that runs, and of one that stands by, leaves no failed unit."""
    s = begin()
    r = Result("systemd", "stop of a daily job and of its standby")
    install()
    one, two = "trafficcop-daily@stopped.service", "other-daily@stopped.service"
    wipe(one, two)
    write("/etc/trafficcop/stopped.env", "TRAFFICCOP_FILE=/srv/share/stopped.lock\n")
    write("/usr/local/bin/stopped", f"#!/bin/sh\nexec {PROBE} {JOURNAL} stopped -b 20\n", 0o755)
    sh("cp /etc/systemd/system/trafficcop-daily@.service /etc/systemd/system/other-daily@.service; systemctl daemon-reload")
    sh(f"systemctl start --no-block {one}")
    run_started()
    sh(f"systemctl start --no-block {two}")
    until(lambda: "standing by" in prop(two, "StatusText"), 10)
    for unit in (two, one):
        sh(f"systemctl stop {unit}")
        r.expect(prop(unit, "ActiveState") == "inactive" and prop(unit, "Result") == "success", state(unit))
    survivors(r)
    r.say()
    print(log(one, s))
    print(log(two, s))
    wipe(one, two)


@scenario
def journald():
    """journald stopped: the log's pipe is full; nothing may wait for it."""
    s = begin()
    r = Result("systemd", "journald stopped for 40 s, lease 15 s")
    install(env="TRAFFICCOP_SHARED=true\nTRAFFICCOP_LEASE=15s\nRUST_LOG=trace", lock=f"/srv/share/j{time.time_ns()}")
    drop_in(A, "[Service]\nExecStart=\nExecStart=/usr/bin/trafficcop run -v -- /usr/local/bin/imp\n")
    sh(f"systemctl start {A}")
    m = run_started()[0]
    j = int(sh("systemctl show -p MainPID --value systemd-journald"))
    pid = prop(A, "MainPID")
    os.kill(j, 19)
    time.sleep(40)
    r.expect(len(mains()) == 1, f"{len(mains())} tenures")
    r.expect((now() - last_beat(m.owner)) / 1e9 < 1, "the command is gone")
    r.expect(pid == prop(A, "MainPID"), "restarted")
    os.kill(j, signal.SIGCONT)
    sh(f"systemctl stop {A}")
    survivors(r)
    r.say()
    print(log(A, s)[-1500:])


@scenario
def work():
    s = begin()
    r = Result("systemd", "work unit, no queue to be reached")
    install()
    write("/etc/trafficcop/work-orders.env", "AZURE_STORAGE_CONNECTION_STRING=DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;\n")
    write("/usr/local/lib/workers/orders", "#!/bin/sh\ncat\n", 0o755)
    u = "trafficcop-work@orders.service"
    wipe(u)
    sh(f"timeout 30 systemctl start {u}")
    time.sleep(15)
    r.figure(state(u)[:200])
    r.say()
    print(log(u, s))
    sh(f"systemctl stop {u}")


if __name__ == "__main__":
    for x in sys.argv[1:]:
        SCENARIOS[x]()
