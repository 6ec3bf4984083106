#!/bin/bash
# push.sh VM FILE: a file of guest/ into a running machine
export W=${W:-${TMPDIR:-/tmp}/trafficcop-vm}; cd "$(dirname "$0")"; b=$(base64 -w0 guest/"$2"); python3 machine.py sh "$1" "echo $b | base64 -d > /opt/tc/$2"
