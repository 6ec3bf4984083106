#!/bin/sh
# Handles one message: the body on stdin, what is known of it in the environment. What it exits with
# decides what becomes of the message.
#
#     trafficcop work --queue orders -- ./examples/work/handle.sh
#
# Try it with Azurite:
#
#     trafficcop work --emulator --queue try --create -- ./examples/work/handle.sh
set -eu

order=$(cat)

# What no repetition can cure is dead-lettered: 65 is EX_DATAERR, and in --dead-letter-exit.
case $order in
'{'*'}') ;;
*)
    echo "$TRAFFICCOP_MESSAGE_ID: not a JSON object" >&2
    exit 65
    ;;
esac

# Where the queue alone counts (Service Bus without --max-attempts), nobody tells us how many there are.
most=${TRAFFICCOP_MESSAGE_MAX_ATTEMPTS:-as many as the queue allows}
echo "$TRAFFICCOP_MESSAGE_ID (attempt $TRAFFICCOP_MESSAGE_ATTEMPT of $most): $order"

# Before a step that must not run twice: is the message still ours? (Any failure brings it back later.)
trafficcop check || exit 75
