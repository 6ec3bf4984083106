#!/bin/sh
# Works in small pieces for as long as it is in control:
#
#     trafficcop run --blob locks/worker -- ./examples/check/worker.sh
#
# A piece begins only if there is time for it, whatever becomes of the lease meanwhile.
piece=2 # seconds that a piece of work takes at most

while remaining=$(trafficcop check --remaining); do
    if [ "$remaining" -gt "$piece" ]; then
        sleep 0.5 # the work
        echo "worked, token $TRAFFICCOP_TOKEN"
    else
        sleep 0.2 # a renewal may come
    fi
done
echo "no longer in control: leaving it to the next one"
