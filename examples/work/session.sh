#!/bin/sh
# Handles the messages of a session in their order, and remembers the last one in the session's state, so
# that a message that comes again (its completion was not confirmed) is not booked twice.
#
#     trafficcop work --service-bus bookings --sessions -j 10 -- ./examples/work/session.sh
#
# The state is a file: as the last command that succeeded left it, whichever worker that ran on. What is
# in it is stored before the message is completed, and what a failed command wrote is not kept.
set -eu

state=$TRAFFICCOP_SESSION_STATE_FILE
last=none total=0
# "LAST-MESSAGE TOTAL"; empty at first.
if [ -s "$state" ]; then
    read -r last total <"$state"
fi
if [ "$last" = "$TRAFFICCOP_MESSAGE_ID" ]; then
    echo "$TRAFFICCOP_SESSION_ID: $last was booked before"
    exit 0
fi

amount=$(cat)
case $amount in
'' | *[!0-9]*)
    # What no repetition can cure is dead-lettered, and the next message is run.
    echo "$TRAFFICCOP_SESSION_ID: not an amount: $amount" >&2
    exit 65
    ;;
esac

total=$((total + amount))
echo "$TRAFFICCOP_MESSAGE_ID $total" >"$state"
echo "$TRAFFICCOP_SESSION_ID: $amount booked, $total in all"
