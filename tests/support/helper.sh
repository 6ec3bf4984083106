#!/bin/sh
# A store of files in $STORE, for tests of --store. The tag of an entry is its checksum. `before` and `after` are
# faults: shell code that runs before and after each call.
mkdir -p "$STORE/db"
entry=$STORE/db/$2
tag() { if [ -e "$entry" ]; then cksum <"$entry" | tr ' ' -; else echo -; fi; }
[ ! -e "$STORE/before" ] || . "$STORE/before"
exec 9>"$STORE/lock"
flock 9
case $1 in
get) tag; [ ! -e "$entry" ] || cat "$entry" ;;
put) [ "$(tag)" = "$3" ] || exit 4; cat >"$entry.new"; mv "$entry.new" "$entry" ;;
time) date +%s ;;
list) cd "$STORE/db"; ls | grep "^$2" ;;
hides) echo STORE_SECRET ;;
*) exit 2 ;;
esac
status=$?
[ ! -e "$STORE/after" ] || . "$STORE/after"
exit $status
