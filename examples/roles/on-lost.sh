#!/bin/sh
# After control has ended: tells somebody. The next holder may be at work already.
echo "on-lost $TRAFFICCOP_HOLDER: token $TRAFFICCOP_TOKEN ended: $TRAFFICCOP_CAUSE"
