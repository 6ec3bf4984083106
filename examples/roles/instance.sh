#!/bin/sh
# One instance of the service: ./instance.sh NAME. Start it on as many machines as you like; here, in
# as many terminals, with a file as the lock.
cd "$(dirname "$0")" || exit
exec trafficcop run --file "${LOCK:-/tmp/roles.lock}" --identity "$1" --grace 5s \
    --standby "exec ./standby.sh '$1'" \
    --on-acquire ./on-acquire.sh \
    --on-lost ./on-lost.sh \
    -- ./primary.sh
