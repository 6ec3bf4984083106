# The same file on ten machines: each line runs its job on one of them, once in every period. Copy it to
# /etc/cron.d/trafficcop, with mode 0600 where it has a credential. The sixth column is the user; the crontab of a
# user has no such column (see crontab).
#
# A period is an hour or a day of UTC by the clock of the storage service (or the file server), so a machine's own clock
# may be wrong, as long as it starts the line within the period. Hence minute 5: at minute 0, a clock that is a little
# early is still in the hour before.
#
# Each line has its own lock: one lock runs one job at a time, and a long backup would keep the report out of its periods.
# The directory `locks` exists only on the share, so a machine without the share refuses (69) and runs nothing.
#
# -q: no mail from machines that had nothing to do. After --once-attempts failures the job is over for this period, and
# each machine's line ends with its status and a message. Without that flag the machines repeat it without end.

PATH=/usr/local/bin:/usr/bin:/bin

5 *  * * *  root  /usr/local/bin/trafficcop run -q --once-key hourly  --once-per 1h --once-attempts 3 --file /mnt/share/locks/hourly.lock  -- hourly-report
5 3  * * *  root  /usr/local/bin/trafficcop run -q --once-key nightly --once-per 1d --once-attempts 3 --file /mnt/share/locks/nightly.lock -- nightly-backup

# With a lock on a blob. cron does not pass the variables of a shell, so write them here.
#AZURE_STORAGE_CONNECTION_STRING=...
#5 4  * * *  root  /usr/local/bin/trafficcop run -q --once-key report --once-per 1d --once-attempts 3 --blob locks/report -- daily-report
