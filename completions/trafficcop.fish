# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_trafficcop_global_optspecs
    string join \n h/help V/version
end

function __fish_trafficcop_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_trafficcop_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_trafficcop_using_subcommand
    set -l cmd (__fish_trafficcop_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c trafficcop -n "__fish_trafficcop_needs_command" -s h -l help -d 'Print help'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -s V -l version -d 'Print version'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "run" -d 'Run a command while, and only while, this instance holds the lock'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "work" -d 'Run a command for each message of a queue'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "check" -d 'Ask, from inside a command, whether it may begin another piece of work'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "status" -d 'Show who has a lock, and since when'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "list" -d 'List the locks of a container or a directory'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "watch" -d 'Write a line for each change of a lock'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "break" -d 'Break another instance\'s lease'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "reset" -d 'Forget that a task is done'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "doctor" -d 'Check that this machine has what run needs'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "timeline" -d 'Show who held control when, from event logs'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "completions" -d 'Write a script that completes command lines in a shell'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "man" -d 'Write the manual pages'
complete -c trafficcop -n "__fish_trafficcop_needs_command" -f -a "elect" -d 'Report on stdout who is in control, instead of running a command'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l file -d 'This file: on a local disk or a shared drive' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l store -d 'This entry of any store, by a helper program' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -s w -l wait -d 'Give up (exit 75) after D [default: never]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l if -d 'Compete only while CMD, run by \'sh -c\', exits 0' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l connect-timeout -d 'Give up (exit 69) if the store has not answered at all within D [default: 30s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l auth-patience -d 'Exit with 77 after the store has refused the credential for D [default: 5m]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N instead of 75' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l slots -d 'Number of holders at the same time [default: 1]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l poll -d 'How often a standby checks the lock [default: 2s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l doorbell -d 'Tell standbys of a hand-over immediately, by TCP' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l lease -d 'Time that a silent holder keeps the lock [default: 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l grace-on-loss -d 'Time from the stop signal to SIGKILL if the lease cannot be renewed [default: 10s with a lease of 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l margin -d 'Time from SIGKILL to the end of the lease [default: 2s with a lease of 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l if-lost -d 'Action after control was lost' -r -f -a "compete\t'Stand by again'
exit\t'Exit 70 (or 71 if an overlap cannot be excluded)'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l page-blob -d 'Create a page blob of SIZE bytes (K, M, G, T; without SIZE 512), not an empty block blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l identity -d 'Name of this instance in the log and in the lock\'s record [default: HOST-PID]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l status-file -d 'Keep a JSON file with the present state' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l log -d 'The log on stderr' -r -f -a "text\t'One plain line for each change of state'
json\t'One JSON object a line'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l event-log -d 'Append every change of state to this file' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l grace -d 'Time from the stop signal to SIGKILL [default: 30s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l stop-signal -d 'Signal that asks the command to end [default: TERM]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l stop-to -d 'Processes that get the stop signal [default: group]' -r -f -a "group\t'The command\'s process group'
main\t'The command\'s main process alone'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l contain -d 'Containment of the command\'s processes' -r -f -a "auto\t'A cgroup if one is available, else as with none'
cgroup\t'A cgroup of the command\'s own, killed at once'
pidns\t'A PID namespace of its own: no process of it outlives trafficcop or the deadline, even if supervisor and guardian are both killed or both stopped; the command can see it (process ids, /proc)'
none\t'The process group and a walk over all descendants'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l restart -d 'Restart the command when it ends [default: never]' -r -f -a "never\t'Exit when it exits'
on-failure\t'After a status other than 0, or a signal'
always\t'Whenever it ends'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l restart-limit -d 'Hand control over instead of restarting more often than N times within --restart-window [default: 5]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l restart-window -d 'The time in which --restart-limit counts [default: 5m]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l max-hold -d 'Hand control over after D: stop the command, give the lock back, compete again [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l min-hold -d 'Keep the lock for D even if the command ends earlier [default: none]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l cooldown -d 'Time without competing after a hand-over (cool-down) [default: twice --poll; 500ms on a local file; after a command that hung, a lease]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l once-key -d 'Key of the task; each key runs once [default: \'once\']' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l once-per -d 'Run once in each period of D (1h, 1d) of the store\'s clock' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l once-on-failure -d 'Meaning of a failed run [default: retry]' -r -f -a "retry\t'After a back-off of 1 to 30 seconds the next candidate runs the command'
stop\t'The task has failed: that is recorded, and all instances exit with the command\'s status'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l once-attempts -d 'Number of failed runs, of all candidates together, after which the task has failed for good [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l watchdog -d 'Treat the command as hung unless it sends WATCHDOG=1 every D' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l watchdog-start -d 'Treat the command as hung if its first READY=1 or WATCHDOG=1 takes longer than D [default: 90s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l health -d 'Treat the command as hung after --health-failures failures of \'sh -c CMD\' or GET URL' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l health-every -d 'Interval from the start of one --health to that of the next [default: 10s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l health-timeout -d 'Time after which one --health is killed and has failed [default: 5s, or --health-every if that is shorter]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l health-failures -d 'Number of consecutive --health failures before the command counts as hung [default: 3]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l health-delay -d 'Time from the command\'s start to the first --health [default: 0s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l standby -d 'Run CMD by \'sh -c\' on each instance not in control' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l on-acquire -d 'Run CMD by \'sh -c\' before the command starts' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l on-lost -d 'Run CMD by \'sh -c\' after control has ended' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l vm-name -d 'Name of this machine in the events [default: the metadata service\'s name for it, else HOST]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l ready -d 'When systemd is told that the service is ready (Type=notify)' -r -f -a "standby\t'Standing by, or in control'
held\t'In control, and the command was started (give the unit TimeoutStartSec=infinity)'
command\t'The command itself sends READY=1 (the unit needs the same)'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l listen -d 'Serve health, status and metrics over HTTP' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -s n -l no-wait -d 'Give up at once (exit 75) if another instance has the lock'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l no-create -d 'Create neither container nor blob; refuse if one is missing'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l shared -d 'Treat the file as on a drive that machines share, whatever file system it is on'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l mkdir-is-exclusive -d 'Promise that if two machines make the same directory here, exactly one succeeds'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -s v -l verbose -d 'Log each renewal and each attempt'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -s q -l quiet -d 'Log only warnings and errors'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l no-credentials -d 'Keep trafficcop\'s credentials from the command, its hooks and checks'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l once -d 'Run the command until it has succeeded once, on any machine; then on none'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l scheduled-events -d 'Hand control over before this virtual machine is frozen, rebooted, redeployed or removed'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l ack-events -d 'Approve a scheduled event as soon as the command has ended and the lock was given back'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -l listen-any -d 'Let --listen take an address that other machines can reach'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand run" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l queue -d 'An Azure storage queue' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l service-bus -d 'An Azure Service Bus queue or subscription' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l connection-string-env -d 'The environment variable with the connection string [default: AZURE_SERVICEBUS_CONNECTION_STRING]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l session-idle -d 'Give a session up after D without a message [default: 10s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l session-messages -d 'Give a session up after N messages [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l lock-delay -d 'Time that the first command of a session waits [default: 2s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l poison-queue -d 'Where dead-lettered messages go [default: QUEUE-poison]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l encoding -d 'Encoding of messages in a storage queue [default: text, with a warning]' -r -f -a "base64\t'Decode every message; dead-letter one that is not base64'
text\t'Pass every message on as it was sent'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l max-body -d 'The longest body; longer ones are dead-lettered [default: 100M]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -s j -l concurrency -d 'Number of messages to work on at once [default: 1]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l max-messages -d 'Exit 0 after N messages [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l idle-exit -d 'Exit 0 after D without a message [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l auth-patience -d 'Exit with 77 after the queue has refused the credential for D [default: 5m]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l message -d 'Way in which the command gets its message' -r -f -a "stdin\t'On its stdin, every byte as it was sent'
file\t'In a private directory, TRAFFICCOP_MESSAGE_DIR, with body and message.json'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l timeout -d 'The longest a command may run [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l stop-signal -d 'Signal that asks the command to end [default: TERM]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l stop-to -d 'Processes that get the stop signal [default: group]' -r -f -a "group\t'The command\'s process group'
main\t'The command\'s main process alone'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l contain -d 'Containment of the command\'s processes' -r -f -a "auto\t'A cgroup if one is available, else as with none'
cgroup\t'A cgroup of the command\'s own, killed at once'
pidns\t'A PID namespace of its own: no process of it outlives trafficcop or the deadline, even if supervisor and guardian are both killed or both stopped; the command can see it (process ids, /proc)'
none\t'The process group and a walk over all descendants'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l max-attempts -d 'Attempts before a message is dead-lettered [default: 5; on Service Bus the queue\'s own]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l retry-delay -d 'The pause before a retry [default: 10s..5m]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l dead-letter-exit -d 'Exit statuses of final failures [default: 65]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l retry-exit -d 'Exit statuses that always retry, even if --dead-letter-exit includes them in a range [default: 75]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l lock-time -d 'Time for which this worker locks a message [default: 60s; on Service Bus the queue\'s own]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l renew-at -d 'When to renew a lock, in per cent of its time [default: 70%]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l grace -d 'Time that commands may go on after a stop request, before the stop signal [default: 30s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l kill-after -d 'Time from the stop signal to SIGKILL [default: 10s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l identity -d 'Name of this worker in the log [default: HOST-PID]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l status-file -d 'Keep a JSON file with the present state' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l log -d 'The log on stderr' -r -f -a "text\t'One plain line for each change of state'
json\t'One JSON object a line'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l event-log -d 'Append every change of state to this file' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l listen -d 'Serve health, status and metrics over HTTP' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l dead-letter-queue -d 'Work on the dead-letter queue of --service-bus'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l sessions -d 'Take sessions, and the messages of each in order (--service-bus only)'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l link-settle -d 'Settle on the link that brought the message, not by its lock token'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l create -d 'Create the queue if it is missing (--queue only)'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l emulator -d 'Use Azurite, the emulator, on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l once -d 'Take one message, and exit with its command\'s status'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l no-credentials -d 'Keep trafficcop\'s credentials from the command that handles messages'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l at-most-once -d 'Delete each message before its command starts'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -s v -l verbose -d 'Log each renewal and each attempt'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -s q -l quiet -d 'Log only warnings and errors'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -l listen-any -d 'Let --listen take an address that other machines can reach'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand work" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand check" -l wait -d 'Wait up to D: exit 1 as soon as the answer is no, else 0 after D' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand check" -l control -d 'Ask only whether the command is in control, even if it is being stopped'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand check" -l remaining -d 'Print the whole seconds until trafficcop may send SIGKILL'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand check" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l file -d 'A lock on this file (break: on a shared drive only)' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l store -d 'A lock in this entry of a helper\'s store' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -l json -d 'Answer as one JSON object, for slots as an array of them'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand status" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l blob -d 'The locks in this Azure container' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l file -d 'The locks in this directory' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l store -d 'The entries of a helper\'s store whose names begin with PREFIX' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -l json -d 'Answer as a JSON array of the objects of status'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand list" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l file -d 'A lock on this file (break: on a shared drive only)' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l store -d 'A lock in this entry of a helper\'s store' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l poll -d 'How often to check the lock [default: 2s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -l json -d 'Write one JSON object a line'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand watch" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l file -d 'A lock on this file (break: on a shared drive only)' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l store -d 'A lock in this entry of a helper\'s store' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l period -d 'End the lease after N seconds (0 to 60), or at its own end if that is earlier [default: at its own end]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -s y -l yes -d 'Do not ask for confirmation'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand break" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l file -d 'A lock on this file (break: on a shared drive only)' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l store -d 'A lock in this entry of a helper\'s store' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l once-key -d 'The task to forget [default: the only one there is]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l all -d 'Forget all tasks of this lock, and results that cannot be read'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -l force -d 'Forget it although the lock is held; on a blob this breaks the lease and stops the holder\'s command'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -s y -l yes -d 'Do not ask for confirmation'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand reset" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l file -d 'A lock on this file (break: on a shared drive only)' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l store -d 'A lock in this entry of a helper\'s store' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l lease -d 'Judge round trips by this lease, as for run [default: 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l doorbell -d 'Test the doorbell of this machine and of the holder' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l mkdir-is-exclusive -d 'Judge a shared drive as for a run with this flag'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -l json -d 'Answer as one JSON object'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand doctor" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand timeline" -l svg -d 'Also draw it, as an SVG in this file' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand timeline" -l skew -d 'Largest difference between the wall clocks of two machines' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand timeline" -l json -d 'Print JSON instead of a table'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand timeline" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand completions" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand man" -s h -l help -d 'Print a summary; --help prints everything'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l blob -d 'A lease on this Azure blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l file -d 'This file: on a local disk or a shared drive' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l store -d 'This entry of any store, by a helper program' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -s w -l wait -d 'Give up (exit 75) after D [default: never]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l if -d 'Compete only while CMD, run by \'sh -c\', exits 0' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l connect-timeout -d 'Give up (exit 69) if the store has not answered at all within D [default: 30s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l auth-patience -d 'Exit with 77 after the store has refused the credential for D [default: 5m]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -s E -l conflict-exit-code -d 'Exit with N instead of 75' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l doorbell -d 'Tell standbys of a hand-over immediately, by TCP' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l lease -d 'Time that a silent holder keeps the lock [default: 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l auth -d 'Which credential in the environment to use' -r -f -a "auto\t'The only one that is set, or Entra ID if none is'
key\t'The account\'s key'
sas\t'A shared access signature'
entra\t'A token from Entra ID, obtained in the first way that works'
workload\t'A token from Entra ID, obtained by workload identity'
managed\t'A token from Entra ID, obtained with the machine\'s managed identity'
cli\t'A token from Entra ID for the account that is logged in with the Azure CLI'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l ca-file -d 'Trust the certificates in this file (PEM) in addition to the system\'s' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l page-blob -d 'Create a page blob of SIZE bytes (K, M, G, T; without SIZE 512), not an empty block blob' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l identity -d 'Name of this instance in the log and in the lock\'s record [default: HOST-PID]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l status-file -d 'Keep a JSON file with the present state' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l log -d 'The log on stderr' -r -f -a "text\t'One plain line for each change of state'
json\t'One JSON object a line'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l event-log -d 'Append every change of state to this file' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l grace -d 'Time from the line \'standby\' to the lock\'s release [default: 5s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l control-file -d 'Link the control file here, for \'trafficcop check\'' -r -F
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l max-hold -d 'Hand control over after D, and compete again [default: no limit]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l cooldown -d 'Time without competing after a hand-over (cool-down) [default: twice --poll; after a reader that hung, a lease]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l vm-name -d 'Name of this machine in the events [default: the metadata service\'s name for it, else HOST]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l slots -d 'Number of holders at the same time [default: 1]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l poll -d 'How often a standby checks the lock [default: 2s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l grace-on-loss -d 'Time from the line \'standby\' to the latest end of the reader, if the lease cannot be renewed [default: 10s with a lease of 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l margin -d 'Time from the latest end of the reader to the end of the lease [default: 2s with a lease of 60s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l if-lost -d 'What to do after control was lost' -r -f -a "compete\t'Stand by again'
exit\t'Exit 70 (or 71 if an overlap cannot be excluded)'"
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l health-every -d 'Interval from the start of one --health to that of the next [default: 10s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l health-delay -d 'Time from the line \'holder\' to the first --health [default: 0s]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l health-timeout -d 'Time after which one --health has failed [default: 5s, or --health-every if that is shorter]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l health-failures -d 'Number of consecutive --health failures before the reader counts as hung [default: 3]' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l health -d 'Hand control over after --health-failures failures of GET URL' -r
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -s n -l no-wait -d 'Give up at once (exit 75) if another instance has the lock'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l emulator -d 'With --blob: use Azurite on this machine'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l no-create -d 'Create neither container nor blob; refuse if one is missing'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l shared -d 'Treat the file as on a drive that machines share, whatever file system it is on'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l mkdir-is-exclusive -d 'Promise that if two machines make the same directory here, exactly one succeeds'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -s v -l verbose -d 'Log each renewal and each attempt'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -s q -l quiet -d 'Log only warnings and errors'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l json -d 'Print one JSON object a line'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l scheduled-events -d 'Hand control over before this virtual machine is frozen, rebooted, redeployed or removed'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -l ack-events -d 'Approve a scheduled event as soon as the reader\'s grace is over and the lock was given back'
complete -c trafficcop -n "__fish_trafficcop_using_subcommand elect" -s h -l help -d 'Print a summary; --help prints everything'

function __fish_trafficcop_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    or return
    set -l current (commandline -ct)
    if test $at -eq (count $words)
        __fish_complete_command
    else
        complete -C (string join -- ' ' $words[(math $at + 1)..-1] "$current")
    end
end
complete -c trafficcop -n 'contains -- -- (commandline -opc)' -a '(__fish_trafficcop_command)'
