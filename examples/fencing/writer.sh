#!/bin/sh
# The command that trafficcop runs: writes a line a second, each with the fencing token of its
# tenure, and ends as soon as the resource refuses one. Usage: writer.sh DATABASE NAME [LINES]
set -eu
here=$(dirname -- "$0")
database=$1
name=$2
lines=${3:-3600}

: "${TRAFFICCOP_TOKEN:?is not set: run me by trafficcop run --file LOCK -- ./writer.sh DATABASE NAME}"

line=1
while [ "$line" -le "$lines" ]; do
    # With set -e the first refusal (status 3) ends us with that status.
    python3 "$here/resource.py" "$database" write "$TRAFFICCOP_TOKEN" "$name $line"
    line=$((line + 1))
    [ "$line" -gt "$lines" ] || sleep 1
done
