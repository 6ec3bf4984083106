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
total=0
# "TOTAL LAST-MESSAGE"; empty at first. The id comes last: there can be blanks in it.
if [ -s "$state" ]; then
    booked=$(cat "$state")
    total=${booked%% *}
    if [ "${booked#* }" = "$TRAFFICCOP_MESSAGE_ID" ]; then
        echo "$TRAFFICCOP_SESSION_ID: $TRAFFICCOP_MESSAGE_ID was booked before"
        exit 0
    fi
fi
# What is calculated with has to be a number: a shell takes much else for one, and may run it.
case $total in
'' | *[!0-9]*)
    echo "$TRAFFICCOP_SESSION_ID: not a state of ours: $booked" >&2
    exit 1
    ;;
esac

amount=$(cat)
case $amount in
# Also what would be octal (010), or more than a shell can add.
'' | *[!0-9]* | 0?* | ?????????????*)
    # What no repetition can cure is dead-lettered, and the next message is run.
    echo "$TRAFFICCOP_SESSION_ID: not an amount: $amount" >&2
    exit 65
    ;;
esac

total=$((total + amount))
# Not by echo, to which a backslash can say something.
printf '%s %s\n' "$total" "$TRAFFICCOP_MESSAGE_ID" >"$state"
echo "$TRAFFICCOP_SESSION_ID: $amount booked, $total in all"
