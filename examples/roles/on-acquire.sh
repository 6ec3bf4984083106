#!/bin/sh
# Has to succeed before the primary starts: where there is a file "unfit", this machine is none.
if [ -e unfit ]; then
    echo "on-acquire $TRAFFICCOP_HOLDER: not on this machine" >&2
    exit 1
fi
echo "on-acquire $TRAFFICCOP_HOLDER: promoted, token $TRAFFICCOP_TOKEN"
