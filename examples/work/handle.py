#!/usr/bin/env python3
"""Handles one message exactly once, although it can come more than once.

    trafficcop work --queue orders -- ./examples/work/handle.py orders.db

A message comes again when its worker died before it could say that it was done, or when nobody can say
whether the queue heard that. So the result and the message's id are written in one transaction: whoever
finds the id there has nothing to do. With a database of your own instead of SQLite it is the same.
"""

import os
import sqlite3
import sys

DATA_ERROR = 65  # EX_DATAERR: dead-lettered at once


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else "orders.db"
    body = sys.stdin.buffer.read()
    try:
        order = body.decode("utf-8")
    except UnicodeDecodeError as why:
        print(f"not text: {why}", file=sys.stderr)
        return DATA_ERROR
    message = os.environ["TRAFFICCOP_MESSAGE_ID"]

    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS done (message TEXT PRIMARY KEY)")
    database.execute("CREATE TABLE IF NOT EXISTS orders (text TEXT)")
    database.execute("BEGIN IMMEDIATE")
    with database:
        new = database.execute("INSERT OR IGNORE INTO done VALUES (?)", (message,)).rowcount
        if new:
            database.execute("INSERT INTO orders VALUES (?)", (order,))
    print(f"{message}: {'done' if new else 'was done before'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
