#!/bin/sh
# The role of all others: follows the one in control, and serves reads. A stand-in, too.
me=$1
trap 'echo "standby $me: catching up, then making room"; exit 0' TERM
echo "standby $me: following the holder of $TRAFFICCOP_LOCK"
while :; do
    sleep 1 & wait $!
done
