#!/usr/bin/env python3
"""A resource that cannot be written by a holder whose time is over.

It keeps the greatest fencing token it has ever seen, and refuses every write with a smaller one. The
comparison and the write are one transaction: a check beforehand, in the writer, would be no check at
all, because the writer can be stopped between the two.

    resource.py DATABASE write TOKEN TEXT    exit status 0, or 3 if the token is stale
    resource.py DATABASE read                prints the lines written, with their tokens

Only Python's standard library is needed.
"""

import sqlite3
import sys

USAGE = 64
STALE = 3

SCHEMA = """
CREATE TABLE IF NOT EXISTS fence (
    resource TEXT PRIMARY KEY,
    token    INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS line (
    token INTEGER NOT NULL,
    text  TEXT NOT NULL
);
"""

# One statement that compares and raises; it changes no row where the token is stale. An equal token
# passes: one holder writes many times.
RAISE = """
INSERT INTO fence (resource, token) VALUES (:resource, :token)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token
WHERE excluded.token >= fence.token
"""


def connect(path):
    # No transactions behind our back: the one that matters is written out below.
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.executescript(SCHEMA)
    return connection


def write(connection, token, text):
    """Writes a line; tells whether the token was good enough."""
    # IMMEDIATE takes the write lock first: nobody raises the token between our look and our write.
    connection.execute("BEGIN IMMEDIATE")
    try:
        raised = connection.execute(RAISE, {"resource": "lines", "token": token})
        if raised.rowcount != 1:
            connection.execute("ROLLBACK")
            return False
        connection.execute("INSERT INTO line (token, text) VALUES (?, ?)", (token, text))
        connection.execute("COMMIT")
        return True
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def main(words):
    if len(words) == 2 and words[1] == "read":
        for token, text in connect(words[0]).execute("SELECT token, text FROM line ORDER BY rowid"):
            print(token, text)
        return 0
    if len(words) == 4 and words[1] == "write":
        # Digits only, and no more than the column holds.
        token = int(words[2]) if words[2].isdecimal() else -1
        if not 0 <= token < 2**63:
            print(f"resource: not a fencing token: {words[2]!r}", file=sys.stderr)
            return USAGE
        connection = connect(words[0])
        if write(connection, token, words[3]):
            return 0
        (seen,) = connection.execute("SELECT token FROM fence WHERE resource = 'lines'").fetchone()
        print(f"resource: refused: token {token} is stale, {seen} has been seen", file=sys.stderr)
        return STALE
    print("usage: resource.py DATABASE write TOKEN TEXT | resource.py DATABASE read", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
