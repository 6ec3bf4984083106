//! `work` on a storage queue: what a message costs beside the bare calls and a bare process, how many
//! go through at once, what 64 slots weigh; and a soak, which is run only when it is named
//! (`cargo bench -- soak`, for `TRAFFICCOP_SOAK` seconds, 600 unless said).

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trafficcop::queue::storage::{Config, Encoding, StorageQueue, Target};
use trafficcop::queue::{Queue, Settlement};
use trafficcop::{Account, AuthOptions};

use crate::footprint::pss_of;
use crate::instance::{Instance, await_for, bare, children, guardians, now};
use crate::numbers::Samples;
use crate::pace;
use crate::support::azurite::{KEY, queue_string, queues};
use crate::support::queue::Mailbox;
use crate::table::Figure;

const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";
const ROUNDS: usize = 5;
/// Slots whose memory is measured.
const MANY: usize = 64;
/// From one message of the soak to the next: every minute Azurite sweeps out what was deleted, answers
/// nobody meanwhile, and takes a time that grows with the square of it. After 6 000 a minute that was
/// minutes.
const PACE: Duration = Duration::from_millis(50);
/// The most messages that wait in the soak's queue.
const BACKLOG: u32 = 200;
/// The longest text of a message.
const LONGEST: usize = 64 << 10;

/// What a message costs and how many go through.
///
/// # Errors
/// What failed to run.
pub(crate) fn throughput(scene: &Path) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    for (slots, count) in [(1, 120), (8, 400)] {
        let mut ours = Samples::default();
        let mut calls = Samples::default();
        let mut processes = Samples::default();
        let mut more = Samples::default();
        for round in 0..ROUNDS {
            let mailbox = filled(count);
            let bare = bare_loop(&mailbox, slots, count)?;
            let process = bare_processes(count.min(200))?;
            let mailbox = filled(count);
            let log = scene.join(format!("events-{slots}-{round}"));
            let mut worker = work(&mailbox, slots);
            worker.stderr(appended(&scene.join("log"))?);
            let work = pace::of_worker(worker, &log, slots, count)?;
            ours.push(work);
            calls.push(bare);
            processes.push(process);
            more.push(work - bare - process);
        }
        if slots == 1 {
            let what = "fork, exec and end of /bin/true, bare";
            figures.push(Figure::new(what, "ms", processes));
            let what = "a message at -j 1 (peer: bare take and delete)";
            figures.push(Figure::new(what, "ms", ours).beside(Some(calls)));
            let what = "a message at -j 1 beyond bare calls and bare process";
            figures.push(Figure::new(what, "ms", more).at_most(5.0));
        } else {
            // 80 % of what the bare calls achieve.
            let what = "a message at -j 8, /bin/true (peer: 8 loops of take and delete)";
            let figure = Figure::new(what, "ms", ours).beside(Some(calls));
            figures.push(figure.at_most_times(1.25));
        }
    }
    Ok(figures)
}

/// The weight of a worker with 64 commands asleep.
///
/// # Errors
/// What failed to run.
pub(crate) fn memory(scene: &Path) -> Result<Vec<Figure>, String> {
    let mailbox = filled(MANY);
    let mut command = work(&mailbox, MANY);
    command.args(["--grace", "0", "--", "/bin/sleep", "600"]);
    let worker = Instance::start(&mut command, &scene.join("log"));
    let mut sum = 0.0;
    let all = await_for("64 commands", || {
        let all = guardians(worker.pid());
        let busy = all
            .iter()
            .filter(|guardian| !children(**guardian).is_empty());
        (busy.count() == MANY).then_some(all)
    })?;
    for pid in all.into_iter().chain([worker.pid()]) {
        sum += pss_of(pid)?;
    }
    worker.terminate();
    let mut samples = Samples::default();
    samples.push(sum);
    let what = format!("PSS of a worker and its guardians, -j {MANY}, commands asleep");
    let most = 12.0 + 0.5 * MANY as f64;
    Ok(vec![Figure::new(what, "MB", samples).at_most(most)])
}

/// Messages of 1 byte to 64 KiB for as long as asked: what went in has to come out once.
///
/// # Errors
/// What failed to run, or was lost.
pub(crate) fn soak(scene: &Path) -> Result<Vec<Figure>, String> {
    let seconds = std::env::var("TRAFFICCOP_SOAK").map_or(Ok(600), |text| text.parse());
    let length = Duration::from_secs(seconds.map_err(|why| format!("TRAFFICCOP_SOAK: {why}"))?);
    let mailbox = filled(0);
    let (events, sums) = (scene.join("soak-events"), scene.join("soak-sums"));
    let mut command = work(&mailbox, 8);
    command.args(["--encoding", "text", "--event-log"]);
    // What arrived is told by its checksum, a line each.
    let append = "exec cksum >> \"$0\"";
    let sink = sums.as_os_str();
    command
        .arg(&events)
        .args(["--", "/bin/sh", "-c", append])
        .arg(sink);
    let mut worker = Instance::start(&mut command, &scene.join("log"));
    let mut expected = BTreeMap::new();
    let mut rng = fastrand::Rng::with_seed(1);
    let weigh = |worker: &Instance| -> Result<(f64, usize), String> {
        let all = guardians(worker.pid()).into_iter().chain([worker.pid()]);
        all.map(|pid| Ok((pss_of(pid)?, descriptors(pid)?)))
            .try_fold((0.0, 0), |sum, one: Result<_, String>| {
                let one = one?;
                Ok((sum.0 + one.0, sum.1 + one.1))
            })
    };
    let begin = Instant::now();
    let (mut count, mut first) = (0_u64, None);
    while begin.elapsed() < length {
        if mailbox.count() > BACKLOG {
            std::thread::sleep(Duration::from_millis(50));
        }
        let due = PACE * u32::try_from(count).unwrap_or(u32::MAX);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        for _ in 0..20 {
            // As many short ones as long ones, each unlike the others.
            let most = 1 << rng.usize(0..=LONGEST.ilog2() as usize);
            let mut text: String = (0..rng.usize(most / 2..=most).max(1))
                .map(|_| rng.alphanumeric())
                .collect();
            if text.len() > 20 {
                text.replace_range(..20, &format!("{count:020}"));
            }
            mailbox.put(&text);
            *expected.entry(cksum(&text)?).or_insert(0_u64) += 1;
            count += 1;
        }
        if first.is_none() && begin.elapsed() > Duration::from_secs(10) {
            first = Some(weigh(&worker)?);
        }
        if let Some(status) = worker.ended() {
            return Err(format!("the worker ended with {status}"));
        }
    }
    await_for("the queue to be empty", || {
        (mailbox.count() == 0).then_some(())
    })?;
    // At rest, as at any other time: nothing is to have grown.
    let (pss, open) = weigh(&worker)?;
    let (pss_first, open_first) = first.unwrap_or((pss, open));
    worker.terminate();
    let text = std::fs::read_to_string(&sums).map_err(|why| why.to_string())?;
    let mut arrived = BTreeMap::new();
    for line in text.lines() {
        *arrived.entry(line.to_owned()).or_insert(0_u64) += 1;
    }
    let missing = |these: &BTreeMap<String, u64>, those: &BTreeMap<String, u64>| -> u64 {
        let lacks = |(key, count): (&String, &u64)| {
            count.saturating_sub(those.get(key).copied().unwrap_or(0))
        };
        these.iter().map(lacks).sum()
    };
    let of = |value: f64| {
        let mut samples = Samples::default();
        samples.push(value);
        samples
    };
    let took = begin.elapsed().as_secs_f64();
    Ok(vec![
        Figure::new("soak: messages of 1 B to 64 KiB", "", of(count as f64)),
        Figure::new(
            "soak: messages a second, as they were put",
            "1/s",
            of(count as f64 / took),
        ),
        Figure::new("soak: lost", "", of(missing(&expected, &arrived) as f64)).at_most(0.0),
        Figure::new(
            "soak: run twice, or garbled",
            "",
            of(missing(&arrived, &expected) as f64),
        )
        .at_most(0.0),
        Figure::new("soak: PSS after 10 s", "MB", of(pss_first)),
        Figure::new(
            "soak: PSS at the end, beyond that after 10 s",
            "MB",
            of(pss - pss_first),
        )
        .at_most(2.0),
        Figure::new(
            "soak: descriptors at the end, beyond those after 10 s",
            "",
            of(open as f64 - open_first as f64),
        )
        .at_most(0.0),
    ])
}

/// `trafficcop work` on this queue, without a command yet.
fn work(mailbox: &Mailbox, slots: usize) -> Command {
    let mut command = bare("work");
    command
        .env(CONNECTION, queue_string(queues().port, KEY))
        .args(["--queue", &mailbox.name, "-j", &slots.to_string()]);
    command
}

/// The file of what the workers say, to be added to.
fn appended(log: &Path) -> Result<File, String> {
    let file = File::options().create(true).append(true).open(log);
    file.map_err(|why| why.to_string())
}

/// A queue with so many messages.
fn filled(count: usize) -> Mailbox {
    let mailbox = Mailbox::fresh();
    for number in 0..count {
        mailbox.put(&number.to_string());
    }
    mailbox
}

/// Milliseconds a message, for so many loops that take a message and delete it, with the same client.
fn bare_loop(mailbox: &Mailbox, slots: usize, count: usize) -> Result<f64, String> {
    let string = queue_string(queues().port, KEY);
    let get = |name: &str| (name == CONNECTION).then(|| string.clone());
    let queue = StorageQueue::open(Config {
        target: Target::parse(&mailbox.name).map_err(|why| why.to_string())?,
        account: Account::find_queue(&get, &AuthOptions::default(), None)
            .map_err(|why| why.to_string())?,
        lock_time: Duration::from_secs(60),
        encoding: Some(Encoding::Text),
        max_body: 1 << 20,
        poison: None,
        create: false,
    });
    let queue = queue.map_err(|why| why.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| why.to_string())?;
    let later = || trafficcop::Instant::now() + Duration::from_secs(60);
    let failed = AtomicBool::new(false);
    let one = || async {
        let mut done = Vec::new();
        while let Ok(taken) = queue.take(1, later()).await {
            let Some(message) = taken.first() else {
                return done;
            };
            let settled = message.lock.settle(&Settlement::Complete, later()).await;
            failed.fetch_or(settled.is_err(), Ordering::Relaxed);
            done.push(now());
        }
        failed.store(true, Ordering::Relaxed);
        done
    };
    let loops = (0..slots).map(|_| one());
    let done = runtime.block_on(futures::future::join_all(loops));
    let mut done: Vec<f64> = done.into_iter().flatten().collect();
    done.sort_by(f64::total_cmp);
    if failed.into_inner() || done.len() != count {
        return Err("the bare loop failed".to_owned());
    }
    Ok(pace::of(&done, slots))
}

/// Milliseconds from fork to end of `/bin/true`, one after another.
fn bare_processes(count: usize) -> Result<f64, String> {
    let begin = now();
    for _ in 0..count {
        let status = Command::new("/bin/true").stdin(Stdio::null()).status();
        status.map_err(|why| why.to_string())?;
    }
    Ok((now() - begin) / count as f64)
}

/// What `cksum` says of this text, computed here.
fn cksum(text: &str) -> Result<String, String> {
    let step = |crc: u32, byte: u8| {
        let mut crc = crc ^ (u32::from(byte) << 24);
        for _ in 0..8 {
            crc = (crc << 1) ^ (0x04c1_1db7 & (crc >> 31).wrapping_neg());
        }
        crc
    };
    let mut crc = text.bytes().fold(0, step);
    let mut length = text.len();
    while length > 0 {
        crc = step(
            crc,
            u8::try_from(length & 0xff).map_err(|why| why.to_string())?,
        );
        length >>= 8;
    }
    Ok(format!("{} {}", !crc, text.len()))
}

/// How many descriptors this process has open.
fn descriptors(pid: i32) -> Result<usize, String> {
    let path = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&path).map_err(|why| format!("{path}: {why}"))?;
    Ok(entries.count())
}
