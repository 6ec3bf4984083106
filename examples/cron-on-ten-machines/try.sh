#!/bin/sh
# What ten machines do with the crontab beside this script, tried here: the same line ten times at
# once, as often as you call it. One run in each minute.
#
#   ./examples/cron-on-ten-machines/try.sh
#
# The lock is a file in this directory unless TRAFFICCOP_FILE or TRAFFICCOP_BLOB names another.
set -eu

if [ -z "${TRAFFICCOP_FILE:-}${TRAFFICCOP_BLOB:-}" ]; then
    export TRAFFICCOP_FILE=cron-try.lock
fi
for machine in 1 2 3 4 5 6 7 8 9 10; do
    trafficcop run --identity "machine-$machine" --once-key try --once-per 1m -- \
        sh -c 'echo "== the job, run by $TRAFFICCOP_HOLDER for $TRAFFICCOP_PERIOD"; sleep 1' &
done
wait
