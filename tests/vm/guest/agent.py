#!/usr/bin/env python3
"""Runs in the machine: one JSON request a line on the virtio-serial port, one JSON answer."""
import json
import os
import subprocess
import threading
import time

PORT = "/dev/virtio-ports/tc.agent"
while not os.path.exists(PORT):
    time.sleep(0.2)
fd = os.open(PORT, os.O_RDWR)
lock = threading.Lock()


def send(answer):
    data = (json.dumps(answer) + "\n").encode()
    with lock:
        while data:
            data = data[os.write(fd, data):]


def work(request):
    p = subprocess.Popen(["bash", "-c", request["cmd"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        out, _ = p.communicate(timeout=request.get("timeout", 60))
        rc = p.returncode
    except subprocess.TimeoutExpired:
        try:
            os.killpg(p.pid, 9)
        except OSError:
            pass
        try:
            out, _ = p.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            out = b"(stuck)"
        rc = -99
    send({"id": request["id"], "rc": rc, "out": out.decode(errors="replace")})


buf = b""
while True:
    try:
        d = os.read(fd, 65536)
    except OSError:
        d = b""
    if not d:
        time.sleep(0.2)
        continue
    buf += d
    while b"\n" in buf:
        line, buf = buf.split(b"\n", 1)
        if line.strip():
            threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()
