#!/bin/sh
# Starts and stops something by role: reads the lines of `trafficcop elect` and runs WORK while we
# are in control. For what can be run as one command, `trafficcop run` is the better choice: it kills the
# whole tree in time. This is for what has to be told.
#
#     trafficcop elect --file /tmp/turn.lock --control-file /tmp/turn.one.control |
#         CONTROL=/tmp/turn.one.control ./examples/elect/by-role.sh
#
# CONTROL is the control file's link, which each instance has for itself: with it WORK finds
# TRAFFICCOP_CONTROL in its environment, and can ask `trafficcop check` before each step.
work=${WORK:-'while trafficcop check; do echo "working with token $TOKEN"; sleep 1; done'}
pid=

stop() {
    [ -n "$pid" ] || return 0
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    pid=
    echo "stopped"
}

# However we end, the work ends first; then the pipe is closed, and the lock is given back.
trap 'stop; exit 1' HUP INT TERM

while read -r role word; do
    case $role in
    holder)
        stop
        TOKEN=$word TRAFFICCOP_CONTROL=${CONTROL:-} sh -c "$work" &
        pid=$!
        echo "in control, token $word"
        ;;
    standby)
        # Others can be in control when the grace has passed: stop at once, and wait until it is done.
        stop
        echo "standing by behind $word"
        ;;
    esac
done
# The end of the lines: trafficcop is gone, and so is our control.
stop
