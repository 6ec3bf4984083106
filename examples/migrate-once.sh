#!/bin/sh
# The start of one of many identical instances (a container's entry point, say): one of them
# migrates, all others wait until that is done, and then all of them serve.
#
#   TRAFFICCOP_FILE=migrate.lock ./examples/migrate-once.sh v7
#   TRAFFICCOP_BLOB=locks/migrate ./examples/migrate-once.sh v7
#
# The lock comes from the environment, like every flag can. Started again with the same version
# it serves at once; a new version is a new task. If the migration fails, the next instance tries;
# after three failures of all together every instance ends here, with the migration's status.
#
# It may run again after a crash, until its success is recorded: each step is one that may.
set -eu

version=${1:?which version? as in: $0 v7}
state=${STATE:-migrated.txt}

if [ "${2:-}" = migrate ]; then
    echo "$version: migrating, token $TRAFFICCOP_TOKEN, task $TRAFFICCOP_TASK"
    sleep "${SECONDS_OF_WORK:-2}"
    # Under another name first: whoever reads sees all of it or nothing.
    { cat "$state" 2>/dev/null || true; echo "$version"; } | sort -u >"$state.new"
    mv "$state.new" "$state"
    exit "${MIGRATION_STATUS:-0}"
fi

# Exits here, with its status, unless the migration is done.
trafficcop run --once-key "$version" --once-attempts 3 -- "$0" "$version" migrate

echo "$version: serving"
# exec ./server
