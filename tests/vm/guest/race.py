"""race.py DIR WHO N START: N directories, each made at a common time; who won is written to /run/tc/race.WHO."""
import json
import os
import sys
import time

d, who, n, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
os.makedirs(d, exist_ok=True)
won, other = [], []
for i in range(n):
    if i % 2:  # a negative answer is cached by this client
        os.path.exists(f"{d}/{i:05}")
    while time.time() < start + i * 0.1:
        pass
    try:
        os.mkdir(f"{d}/{i:05}")
        won.append(i)
    except FileExistsError:
        pass
    except OSError as e:
        other.append((i, str(e)))
with open(f"/run/tc/race.{who}", "w") as f:
    json.dump({"won": won, "other": other}, f)
