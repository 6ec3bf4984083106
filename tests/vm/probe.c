/* probe: the command that trafficcop is made to run. It writes a journal that
 * guest/overlap.py reads: one write() per line to an O_APPEND file,
 *
 *     <CLOCK_BOOTTIME ns> <event> <owner> <pid> <role>
 *
 * owner is NAME.<pid of the main process>.<fencing token or attempt>: every run is an owner of its own, so that a
 * rest of an earlier tenure of the same instance counts as an overlap too.
 * events: start, beat (every -b ms), sigN, end (clean exit).  roles: main, gc, gcsid (setsid), daemon (setsid, double
 * fork, all descriptors but the journal closed).
 *
 * usage: probe JOURNAL NAME [-1] [-b MS] [-i] [-I] [-T] [-g MS] [-d MS] [-x CODE] [-m]
 *   -1       write start and exit at once           -b MS    heartbeat period, default 20
 *   -i / -I  main / the whole tree ignores TERM, INT, HUP, QUIT (writes sigN and goes on)
 *   -T       start the three grandchildren          -g MS    run on that long after a stop signal
 *   -d MS    end by itself after MS                 -x CODE  with this status
 *   -m       the body of a message on stdin says "NAME MS CODE [text…]": instead of NAME, -d and -x
 * SIGUSR1 to main: end at once, with status CODE (grandchildren stay behind).
 * Every process ends by itself after 10 minutes.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int log_fd, ignore_main, ignore_all, code;
static long beat = 20, grace, life;
static char owner[160];
static const char *role = "main";
static volatile sig_atomic_t last_sig;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void line(long long ns, const char *event) {
    char b[256];
    int n = snprintf(b, sizeof b, "%lld %s %s %d %s\n", ns, event, owner, (int)getpid(), role);
    if (write(log_fd, b, n) != n) _exit(9);
}

static void on_sig(int s) { last_sig = s; }

static void run(int ignore) {
    struct sigaction sa = {.sa_handler = on_sig};
    int sigs[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1};
    for (unsigned i = 0; i < sizeof sigs / sizeof *sigs; i++) sigaction(sigs[i], &sa, NULL);
    long long born = now_ns(), stop_at = life ? born + life * 1000000LL : 0, n;
    struct timespec p = {beat / 1000, beat % 1000 * 1000000L};
    while ((n = now_ns()) < born + 600000000000LL && (!stop_at || n < stop_at)) {
        if (stop_at && stop_at - n < beat * 1000000LL) p.tv_sec = 0, p.tv_nsec = (stop_at - n) % 1000000000;
        nanosleep(&p, NULL);
        int s = last_sig;
        last_sig = 0;
        if (s) {
            char e[16];
            snprintf(e, sizeof e, "sig%d", s);
            line(now_ns(), e);
            if (s == SIGUSR1) break;
            if (!ignore) {
                if (!grace) break;
                if (!stop_at) stop_at = now_ns() + grace * 1000000LL;
            }
        }
        line(now_ns(), "beat");
    }
    line(now_ns(), "end");
    _exit(strcmp(role, "main") ? 0 : code);
}

int main(int argc, char **argv) {
    long long t0 = now_ns();
    if (argc < 3) return 2;
    log_fd = open(argv[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log_fd < 0) return 3;
    char name[100], body[65536] = "";
    snprintf(name, sizeof name, "%s", argv[2]);
    int once = 0, tree = 0, message = 0;
    for (int i = 3; i < argc; i++) {
        int more = i + 1 < argc;
        if (!strcmp(argv[i], "-1")) once = 1;
        else if (!strcmp(argv[i], "-b") && more) beat = atol(argv[++i]);
        else if (!strcmp(argv[i], "-g") && more) grace = atol(argv[++i]);
        else if (!strcmp(argv[i], "-d") && more) life = atol(argv[++i]);
        else if (!strcmp(argv[i], "-x") && more) code = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-i")) ignore_main = 1;
        else if (!strcmp(argv[i], "-I")) ignore_main = ignore_all = 1;
        else if (!strcmp(argv[i], "-T")) tree = 1;
        else if (!strcmp(argv[i], "-m")) message = 1;
        else return 2;
    }
    const char *tag = getenv(message ? "TRAFFICCOP_MESSAGE_ATTEMPT" : "TRAFFICCOP_TOKEN");
    if (message) {
        size_t n = 0;
        ssize_t k;
        while (n < sizeof body - 1 && (k = read(0, body + n, sizeof body - 1 - n)) > 0) n += k;
        if (sscanf(body, "%99s %ld %d", name, &life, &code) != 3) return 4;
    }
    snprintf(owner, sizeof owner, "%s.%d.%.20s", name, (int)getpid(), tag && *tag ? tag : "-");
    line(t0, "start");
    if (once) return code;
    if (tree) {
        const char *roles[] = {"gc", "gcsid", "daemon"};
        for (int k = 0; k < 3; k++) {
            if (fork() == 0) {
                role = roles[k];
                life = 0;
                if (k >= 1) setsid();
                if (k == 2) {
                    if (fork() != 0) _exit(0);
                    for (int fd = 0; fd < 64; fd++)
                        if (fd != log_fd) close(fd);
                }
                line(now_ns(), "start");
                run(ignore_all);
            }
        }
    }
    run(ignore_main);
}
