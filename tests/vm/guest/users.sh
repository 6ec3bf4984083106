#!/bin/bash
# Two users and one lock on a drive, on a client: users.sh DIR. By how the server shows what each makes, root is refused
# in words (root not squashed), has no permission (root squashed), or is as good as the other (all squashed; SMB with uid=).
cd "$1" || exit; T=/opt/tc/trafficcop; U="setpriv --reuid 1234 --regid 1234 --clear-groups"
rm -rf u; $U mkdir u
($U $T run -q --lease 15s --file u/L -- sleep 12 &); sleep 4
ls -lnd u/L.versions u/L.versions/*1
echo "--- root breaks it"; $T break --yes --period 0 --file u/L 2>&1 | tail -1
echo "--- root runs"; $T run -q -n -E 75 --lease 15s --file u/L -- true; echo "status $?"
sleep 10
echo "--- the user runs"; $U timeout 30 $T run -q --lease 15s --file u/L -- echo user-ran; echo "status $?"
echo "--- root runs"; timeout 30 $T run -q --lease 15s --file u/L -- echo root-ran; echo "status $?"
echo "--- the user runs again"; $U timeout 30 $T run -q --lease 15s --file u/L -- echo user-ran; echo "status $?"
