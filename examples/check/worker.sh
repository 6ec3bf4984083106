#!/bin/sh
# Works in pieces. On a stop it finishes the piece in hand, begins no other, and says that it is safe:
#
#     trafficcop run --stop-to main --grace 30s --blob locks/worker -- ./examples/check/worker.sh
#
# A piece must fit into --grace, and is begun only if it fits into what is left before the lease's deadline.
longest=2 # seconds that a piece takes at most

# The signal goes to this shell alone (--stop-to main). The loop asks 'check', which tells of the stop.
trap : TERM INT

piece() {
    echo "began a piece, token $TRAFFICCOP_TOKEN"
    sleep 0.5 # the work
    echo "finished the piece"
}

# Sleeps between two pieces, and ends at once when a stop is asked or control is lost.
while left=$(trafficcop check --remaining --wait 0.2s); do
    # With too little time left it waits for the renewal.
    [ "$left" -lt "$longest" ] || piece
done
echo "safe: no piece is in hand, and none will be begun"
