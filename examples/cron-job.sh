#!/bin/sh
# A job that must not run twice at the same time: ten seconds of work, one line a second.
#
#   trafficcop run --file singleton.lock -- ./examples/cron-job.sh
#
# Asked to stop (TERM), it finishes the line it is at and says so. TRAFFICCOP_TOKEN grows with
# every run: give it to whatever the job writes to, and let that refuse a smaller one.
set -eu

stopping=
trap 'stopping=yes' TERM INT HUP

say() {
    echo "$(date +%T) token ${TRAFFICCOP_TOKEN:-none} pid $$: $*"
}

say "begins"
second=1
while [ "$second" -le "${SECONDS_OF_WORK:-10}" ]; do
    # In the background, so that a signal is heard at once and not after the sleep.
    sleep 1 &
    sleeper=$!
    wait "$sleeper" || true
    if [ -n "$stopping" ]; then
        say "asked to stop, tidies up and ends"
        kill "$sleeper" 2>/dev/null || true
        exit 0
    fi
    say "works, second $second"
    second=$((second + 1))
done
say "is done"
