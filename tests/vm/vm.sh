#!/bin/bash
# trafficcop on real shared drives and under a real systemd, in emulated machines (QEMU TCG). See README.md beside this.
#
#   vm.sh build                    the machine: packages here, a Debian bookworm root, kernel, initrd, root.img    (3 min)
#   vm.sh payload BINARY [OLDER]   what is tested: the binary, the examples, the scenarios (and an older trafficcop)
#   vm.sh nfs4 ['SCENARIO ARG'..]  NFS 4.2: boots a machine of that name if there is none; none given: the whole set
#   vm.sh nfs3 ['SCENARIO ARG'..]  NFSv3, the same set
#   vm.sh smb ['SCENARIO ARG'..]   SMB 3.1.1
#   vm.sh systemd [SCENARIO..]     the examples as units
#   vm.sh all                      the four of them at the same time, each in a machine of its own
#   vm.sh figures                  the R lines of all logs as a table
#   vm.sh reload VM                another payload into a running machine
#   vm.sh boot VM | stop VM | sh VM COMMAND
set -eu
here=$(cd "$(dirname "$0")" && pwd); export W=${W:-${TMPDIR:-/tmp}/trafficcop-vm}; mkdir -p "$W/logs"; cd "$here"
up() { # a machine of this name
  [ -e "$W/run/$1/pid" ] && kill -0 "$(cat "$W/run/$1/pid")" 2>/dev/null || python3 machine.py boot "$1"
}
run() { # VM PROGRAM SCENARIO...: one after the other, output appended to the log
  local vm=$1 program=$2 log=$W/logs/$1.log s; shift 2
  for s in "$@"; do
    echo "=== $(date +%T) $s" >>"$log"
    python3 machine.py job "$vm" "OPTIONS='${OPTIONS:-}'; [ -n \"\$OPTIONS\" ] && export OPTIONS || unset OPTIONS; python3 -B /opt/tc/$program $s" 1500 >>"$log" 2>&1 || echo "(ended with $?)" >>"$log"
    tac "$log" | sed '/^===/q' | tac | grep -E '^(===|R |Traceback|\(ended|\(did)' || true
  done
}
# what is the same on all three drives
common=("race" "news" "start" "handover exit 3" "handover term 3" "handover kill9 3" "handover guardian 3" "handover both 3" "drain" "cut" "cut 90 '--lease 60s' '-b 20 -T' 1" "exit70" "stop_while_cut"
  "stop_while_cut '-b 20 -I -T'" "verbs" "writer" "machine_dies" "restart 0 '--lease 15s' 25 no service 3" "restart 3 '--lease 15s' 25 no link 3" "restart 20 '--lease 60s' 50 no service" "restart 20 '--lease 60s' 50 no link"
  "long_restart" "server_disk" "two_protocols" "paused")
nfs=("up 20 20" "${common[@]}" "restart 0 '--lease 15s' 40 yes service 3" "restart 0 '--lease 15s' 25 no lockd 3" "operations" "up 90 90" "restart 0 '--lease 60s' 110 no service" "restart 0 '--lease 15s' 60 yes service 3")
smb=("up" "${common[@]}" "restart 0 '--lease 15s' 25 no child 3" "restart 0 '--lease 15s' 25 no reset 3")
units=(basics drain kills ready sockets sandbox timer stopped_jobs work journald shared kills_shared)
case ${1:-} in
build)
  nice -n 19 apt-get install -y --no-install-recommends qemu-system-x86 mmdebstrap busybox-static >/dev/null
  [ -d "$W/root.dir" ] || ./build_root.sh
  ./build_image.sh ;;
payload)
  rm -rf "$W/payload"; mkdir -p "$W/payload/examples"; cp "$here"/guest/*.py "$here"/guest/*.sh "$W/payload/"; gcc -O2 -static -o "$W/payload/probe" "$here/probe.c"
  cp "$2" "$W/payload/trafficcop"; [ -z "${3:-}" ] || cp "$3" "$W/payload/older"; cp -r "$here/../../examples/." "$W/payload/examples/"; tar cf "$W/payload.new" -C "$W/payload" .
  truncate -s 64M "$W/payload.new"; [ -e "$W/payload.tar" ] || truncate -s 64M "$W/payload.tar"
  dd if="$W/payload.new" of="$W/payload.tar" bs=1M conv=notrunc status=none ;; # in place: a running machine sees it
reload) python3 machine.py sh "$2" 'sync; echo 3 >/proc/sys/vm/drop_caches; blockdev --flushbufs /dev/vdb; rm -f /opt/tc/trafficcop; tar xf /dev/vdb -C /opt/tc; sha256sum /opt/tc/trafficcop' ;;
boot) python3 machine.py boot "$2" ;;
nfs4 | nfs3) up "$1"; d=$1; shift; [ $# -gt 0 ] || set -- "${nfs[@]}"; run "$d" "scenarios.py $d" "$@" ;;
smb) up smb; shift; [ $# -gt 0 ] || set -- "${smb[@]}"; run smb "scenarios.py smb" "$@" ;;
systemd) up systemd; shift; [ $# -gt 0 ] || set -- "${units[@]}"; run systemd units.py "$@" ;;
all) for d in nfs4 nfs3 smb systemd; do ./vm.sh $d & done; wait; ./vm.sh figures ;;
figures) echo '| drive | scenario | judged | figures | overlap, s | survivors |'; echo '|---|---|---|---|---|---|'; for f in "$W"/logs/*.log; do grep -h '^R ' "$f" | sed 's/^R \(.*\)$/| \1 |/' || true; done ;;
sh) python3 machine.py sh "$2" "$3" ;;
stop) python3 machine.py stop "$2" ;;
*) sed -n '2,15p' "$0" ;;
esac
