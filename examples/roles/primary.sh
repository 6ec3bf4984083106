#!/bin/sh
# The role of the one in control: serves reads and writes. A stand-in that says so every second.
trap 'echo "primary $TRAFFICCOP_HOLDER: closing the books"; exit 0' TERM
echo "primary $TRAFFICCOP_HOLDER: serving, token $TRAFFICCOP_TOKEN"
while :; do
    sleep 1 & wait $!
    echo "primary $TRAFFICCOP_HOLDER: at work"
done
