//! What a holder and a standby cost that do nothing but be there: memory, requests, processor.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::{Table, short};
use crate::instance::Instance;
use crate::rows::ROWS;
use crate::support::proxy::Proxy;
use crate::tools::{Tool, World};
use crate::wire::Wire;

/// For how long they are watched: some renewals of every tool.
const WATCH: Duration = Duration::from_secs(45);
/// Until what a start leaves behind is done.
const REST: Duration = Duration::from_secs(2);
const CROWD: usize = 50;
const MB: f64 = 1e6;

/// A holder and a standby, each with its store to itself as far as requests are counted.
///
/// # Errors
/// What failed to run.
pub(super) fn of_one(world: &World<'_>, tool: &Tool, table: &mut Table) -> Result<(), String> {
    let lock = "beside-cost";
    let log = world.scene.join(format!("{}-cost.log", tool.name));
    let counted = |port: Option<u16>| port.filter(|_| tool.speaks_http()).map(Proxy::before);
    let proxies = [counted(tool.store()), counted(tool.store())];
    let start = |proxy: &Option<Proxy>, log: &Path| {
        let wire = proxy
            .as_ref()
            .map(|proxy| Wire::to(proxy.port))
            .transpose()?;
        let words = [
            world.probe.as_os_str(),
            OsStr::new("mark"),
            OsStr::new("/dev/null"),
        ];
        let mut command = tool.command(world, lock, false, wire.as_ref(), &words);
        Ok::<_, String>((Instance::start(&mut command, log), wire))
    };
    let holder = start(&proxies[0], &log)?;
    crate::instance::await_for("a holder's command", || {
        let tree = tree_of(holder.0.pid());
        tree.iter()
            .any(|pid| is_command(*pid, world.probe))
            .then_some(())
    })?;
    let standby = start(&proxies[1], &log)?;
    tool.await_standby(world, lock, &log)?;
    std::thread::sleep(REST);

    let instances = [&holder.0, &standby.0];
    let asked = || {
        proxies
            .each_ref()
            .map(|proxy| proxy.as_ref().map(|it| it.log().len()))
    };
    let (requests, etcd) = (asked(), tool.etcd_requests());
    let busy = || instances.map(|instance| cpu(instance.pid(), world.probe));
    let before = busy();
    std::thread::sleep(WATCH);
    let (later, etcd_later) = (asked(), tool.etcd_requests());
    let after = busy();
    for at in 0..2 {
        table.set(
            ROWS[2 + at],
            tool.name,
            short(pss(instances[at].pid(), world.probe) / MB),
        );
        let spent = (after[at] - before[at]) / 1e6 * 60.0 / WATCH.as_secs_f64();
        table.set(ROWS[7 + at], tool.name, short(spent));
        let rate = match (requests[at], later[at], etcd, etcd_later) {
            (Some(first), Some(last), ..) => (last - first) as f64,
            // Both keep a session with the same server alive: half of it is each one's.
            (_, _, Some(first), Some(last)) => (last - first) / 2.0,
            _ => continue,
        };
        table.set(ROWS[5 + at], tool.name, short(rate / WATCH.as_secs_f64()));
    }
    end(world, [standby.0, holder.0]);
    Ok(())
}

/// One of many standbys: what they share counts for each by its share.
///
/// # Errors
/// What failed to run.
pub(super) fn of_fifty(world: &World<'_>, tool: &Tool, table: &mut Table) -> Result<(), String> {
    let lock = "beside-crowd";
    let log = world.scene.join(format!("{}-crowd.log", tool.name));
    let words = [
        world.probe.as_os_str(),
        OsStr::new("mark"),
        OsStr::new("/dev/null"),
    ];
    let start = || Instance::start(&mut tool.command(world, lock, false, None, &words), &log);
    let holder = start();
    crate::instance::await_for("a holder's command", || {
        let tree = tree_of(holder.pid());
        tree.iter()
            .any(|pid| is_command(*pid, world.probe))
            .then_some(())
    })?;
    let standbys: Vec<Instance> = (0..CROWD).map(|_| start()).collect();
    tool.await_standby(world, lock, &log)?;
    // Until the last of them has come to rest, however slow the machine is.
    let busy = || {
        standbys
            .iter()
            .map(|one| cpu(one.pid(), world.probe))
            .sum::<f64>()
    };
    let mut last = busy();
    for _ in 0..60 {
        std::thread::sleep(REST);
        let now = busy();
        if now - last < 50e6 * REST.as_secs_f64() {
            break;
        }
        last = now;
    }
    let sum: f64 = standbys.iter().map(|one| pss(one.pid(), world.probe)).sum();
    table.set(ROWS[4], tool.name, short(sum / CROWD as f64 / MB));
    end(world, standbys);
    end(world, [holder]);
    Ok(())
}

/// Ends instances with their commands: each by its own id.
fn end(world: &World<'_>, instances: impl IntoIterator<Item = Instance>) {
    for instance in instances {
        let commands: Vec<i32> = tree_of(instance.pid())
            .into_iter()
            .filter(|pid| is_command(*pid, world.probe))
            .collect();
        instance.kill();
        for pid in commands {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// A process and all that came from it and still are its descendants.
pub(super) fn tree_of(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut tree = vec![root];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        tree.extend(children.get(pid).into_iter().flatten());
        at += 1;
    }
    tree
}

/// Whether this is the command, and not the tool.
pub(super) fn is_command(pid: i32, probe: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == probe)
}

fn of_tool(root: i32, probe: &Path) -> impl Iterator<Item = i32> {
    tree_of(root)
        .into_iter()
        .filter(move |pid| !is_command(*pid, probe))
}

/// In bytes.
fn pss(root: i32, probe: &Path) -> f64 {
    let of = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok()
    };
    of_tool(root, probe).filter_map(of).sum::<f64>() * 1024.0
}

/// Nanoseconds on a processor, of all threads.
fn cpu(root: i32, probe: &Path) -> f64 {
    let of = |pid: i32| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let spent = tasks.flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        Some(spent.sum::<f64>())
    };
    of_tool(root, probe).filter_map(of).sum()
}
