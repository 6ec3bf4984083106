//! `work` on a queue of Service Bus (the tests' stand-in broker, in this process): messages a second at
//! -j 8 beside the bare processes, and beside Microsoft's Python client doing the same; and what twenty
//! thousand of them leave in memory.
//!
//! The Python that `TRAFFICCOP_TEST_PYTHON` names (python3 unless said) needs `azure-servicebus`; where
//! it is missing there is no such figure, and that is said.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use service_bus_stand_in::{Broker, Message, QueueSettings, Settings};

use crate::instance::{Instance, await_for, now};
use crate::numbers::Samples;
use crate::pace;
use crate::programs;
use crate::table::Figure;

const QUEUE: &str = "figures";
const ROUNDS: usize = 5;
const SLOTS: usize = 8;
const COUNT: usize = 1000;
/// How many messages memory is looked at before, and at the end of.
const FIRST: usize = 2000;
const MANY: usize = 20_000;

/// Takes and completes as many messages as there are, each after a process of its own, eight at once:
/// prints how many milliseconds a message took.
const PYTHON: &str = "
import concurrent.futures, subprocess, sys, time
from azure.servicebus import ServiceBusClient
connection, queue, count, slots = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with ServiceBusClient.from_connection_string(connection) as client:
    with client.get_queue_receiver(queue) as receiver, concurrent.futures.ThreadPoolExecutor(slots) as pool:
        run = lambda message: (subprocess.run(['/bin/true'], stdin=subprocess.DEVNULL, check=True), message)[1]
        done, begin, waiting = 0, None, set()
        while done < count:
            free = min(slots - len(waiting), count - done - len(waiting))
            if free:
                for message in receiver.receive_messages(free, max_wait_time=5):
                    begin = begin or time.monotonic()
                    waiting.add(pool.submit(run, message))
            ready, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for one in ready:
                receiver.complete_message(one.result())
                done += 1
        print((time.monotonic() - begin) * 1000 / count)
";

/// How many go through.
///
/// # Errors
/// What failed to run.
pub(crate) fn throughput(scene: &Path) -> Result<Vec<Figure>, String> {
    let mut ours = Samples::default();
    let mut processes = Samples::default();
    let mut theirs = Samples::default();
    let python = python();
    for round in 0..ROUNDS {
        processes.push(bare_processes()?);
        let broker = filled(COUNT)?;
        let log = scene.join(format!("bus-events-{round}"));
        ours.push(pace::of_worker(worker(&broker), &log, SLOTS, COUNT)?);
        if let Some(python) = &python {
            let broker = filled(COUNT)?;
            let mut command = Command::new(python);
            command.args(["-c", PYTHON, &broker.connection_string(), QUEUE]);
            command.args([COUNT.to_string(), SLOTS.to_string()]);
            let output = command.output().map_err(|why| why.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let took = text.trim().parse();
            theirs.push(took.map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?);
        }
    }
    // 80 % of what bare processes achieve, or five hundred a second.
    let least = (processes.p50() * 1.25).max(2.0);
    let what = "a message on Service Bus at -j 8, /bin/true (peer: bare processes)";
    let figure = Figure::new(what, "ms", ours).beside(Some(processes));
    let mut figures = vec![figure.at_most(least)];
    if python.is_some() {
        let what = "the same by Microsoft's Python client";
        figures.push(Figure::new(what, "ms", theirs));
    } else {
        println!("peer: MISSING: azure-servicebus in Python (TRAFFICCOP_TEST_PYTHON)");
    }
    Ok(figures)
}

/// What a worker weighs after many messages, beyond what it weighed after some.
///
/// # Errors
/// What failed to run.
pub(crate) fn memory(scene: &Path) -> Result<Vec<Figure>, String> {
    let broker = filled(MANY)?;
    let mut command = worker(&broker);
    command.args(["--", "/bin/true"]);
    let worker = Instance::start(&mut command, &scene.join("log"));
    let weigh = || crate::footprint::pss_of(worker.pid());
    let left = |most: usize| {
        await_for("messages to be done with", || {
            let counts = broker.look(|view| view.counts(QUEUE));
            (counts.ready + counts.locked <= most).then_some(())
        })
    };
    left(MANY - FIRST)?;
    let first = weigh()?;
    // Longer than anything is waited for at once.
    for share in (0..10).rev() {
        left((MANY - FIRST) * share / 10)?;
    }
    let last = weigh()?;
    worker.kill();
    let mut grown = Samples::default();
    grown.push(last - first);
    let what = "what a worker grows by from 2 000 to 20 000 messages of Service Bus";
    Ok(vec![Figure::new(what, "MB", grown).at_most(1.0)])
}

/// A broker with so many messages.
fn filled(count: usize) -> Result<Broker, String> {
    let broker = Broker::start(Settings::default()).map_err(|why| why.to_string())?;
    broker.create(QUEUE, QueueSettings::default());
    for number in 0..count {
        broker.put(QUEUE, Message::data(number.to_string().as_bytes()));
    }
    Ok(broker)
}

/// `trafficcop work` on it, without a command yet.
fn worker(broker: &Broker) -> Command {
    let mut command = Command::new(programs::trafficcop());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        if text.starts_with("TRAFFICCOP_") || text.starts_with("AZURE_") {
            command.env_remove(name);
        }
    }
    let string = broker.connection_string();
    command
        .env("AZURE_SERVICEBUS_CONNECTION_STRING", string)
        .args(["work", "--quiet", "--service-bus", QUEUE])
        .args(["-j", &SLOTS.to_string()]);
    command
}

/// Milliseconds a process, eight at once.
fn bare_processes() -> Result<f64, String> {
    let start = || -> Result<Child, String> {
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::null());
        command.spawn().map_err(|why| why.to_string())
    };
    let begin = now();
    std::thread::scope(|scope| {
        let loops: Vec<_> = (0..SLOTS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..COUNT / SLOTS {
                        start()?.wait().map_err(|why| why.to_string())?;
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        for each in loops {
            each.join().map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok::<_, String>(())
    })?;
    Ok((now() - begin) / COUNT as f64)
}

/// A Python with Microsoft's client.
fn python() -> Option<String> {
    let python = std::env::var("TRAFFICCOP_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut command = Command::new(&python);
    command.args(["-c", "import azure.servicebus"]);
    let there = command.output().is_ok_and(|output| output.status.success());
    there.then_some(python)
}
