#!/usr/bin/env python3
"""mux.py NAME: holds the one connection to a machine's agent, and lets many talk over it (run/NAME/mux)."""
import json
import os
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import machine

vm = machine.Machine(sys.argv[1])
vm.connect(900)
with open(f"{vm.dir}/mux.pid", "w") as f:
    f.write(str(os.getpid()))
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{vm.dir}/mux")
listener.listen(50)


def serve(c):
    f = c.makefile("rw")
    for line in f:
        request = json.loads(line)
        limit = request.pop("limit", 120)
        try:
            answer = vm.rpc(request, limit)
        except TimeoutError as e:
            answer = {"rc": -98, "out": f"(no answer: {e})"}
        try:
            f.write(json.dumps(answer) + "\n")
            f.flush()
        except OSError:
            return


while True:
    c, _ = listener.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
