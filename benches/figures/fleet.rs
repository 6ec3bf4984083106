//! Fifty real standbys on one blob, and the lane that a planned hand-over takes.
//!
//! Every request passes a proxy that only counts. What is asked of the service is compared with its
//! target for one blob.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use crate::instance::{Instance, Lock, await_for, trafficcop};
use crate::numbers::Samples;
use crate::support::azurite;
use crate::support::proxy::Proxy;
use crate::table::Figure;

const STANDBYS: usize = 50;
const HAND_OVERS: usize = 20;
/// For how long the fleet is watched while nothing happens.
const WATCH: Duration = Duration::from_secs(30);
/// What one blob is meant to take, in requests a second.
const TARGET: f64 = 500.0;
/// The longest a standby waits between two looks at the default `--poll`, in ms.
const POLL: f64 = 2400.0;
/// The same while the holder drains.
const FAST_LANE: f64 = 300.0;
/// What a look that finds the lock free, and all that follows it, may take on top of that.
const TO_START: f64 = 180.0;
const LANE_RUNS: usize = 10;

/// The figures.
///
/// # Errors
/// What failed to run.
pub(crate) fn figures(scene: &Path, probe: &Path) -> Result<Vec<Figure>, String> {
    let mut figures = crowd(scene, probe, false)?;
    figures.extend(crowd(scene, probe, true)?);
    figures.extend(fast_lane(scene, probe)?);
    Ok(figures)
}

fn crowd(scene: &Path, probe: &Path, doorbell: bool) -> Result<Vec<Figure>, String> {
    let (name, options, hears, fleet): (_, &[&str], _, _) = match doorbell {
        true => (
            "figures/fleet-bell",
            &["--doorbell", "-v"],
            "hears the holder's doorbell",
            "blob, 50 standbys with a doorbell",
        ),
        false => ("figures/fleet", &[], "standing by", "blob, 50 standbys"),
    };
    let proxy = Proxy::before(azurite::azurite().port);
    let connection = azurite::connection_string(proxy.port);
    let log = scene.join(format!("fleet-{doorbell}.log"));
    let start = || {
        let mut command = trafficcop(Lock::Blob(name, &connection));
        command.args(["--log", "text"]).args(options);
        command.arg("--").arg(probe).arg("hold");
        Instance::start(&mut command, &log)
    };
    let mut holder = start();
    holder.told()?;
    let mut standbys: Vec<Instance> = (0..STANDBYS).map(|_| start()).collect();
    await_for("fifty standbys", || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        (said.matches(hears).count() >= STANDBYS).then_some(())
    })?;
    // What comes of all of them starting at once is over.
    std::thread::sleep(Duration::from_secs(5));
    let from = proxy.log().len();
    std::thread::sleep(WATCH);
    let moments: Vec<u64> = proxy.log()[from..].iter().map(|seen| seen.at).collect();
    let rate = moments.len() as f64 / WATCH.as_secs_f64();
    let busiest = busiest(&moments, 100_000_000);

    // They end as soon as they may: a chain of hand-overs.
    for standby in &mut standbys {
        standby.let_go();
    }
    holder.let_go();
    let mut spans = vec![(f64::MIN, holder.told()?)];
    for standby in &mut standbys {
        spans.push((standby.told()?, standby.told()?));
    }
    holder.succeed()?;
    for standby in standbys {
        standby.succeed()?;
    }
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut gaps = Samples::default();
    for pair in spans.windows(2).take(HAND_OVERS) {
        let gap = pair[1].0 - pair[0].1;
        if gap < 0.0 {
            return Err(format!("two commands ran at once for {:.3} ms", -gap));
        }
        gaps.push(gap);
    }
    let one = |value: f64| {
        let mut samples = Samples::default();
        samples.push(value);
        samples
    };
    // The holder's renewals are among them: three a minute.
    let each = (rate - 3.0 / 60.0) / STANDBYS as f64;
    Ok(vec![
        Figure::new(
            format!("{fleet}: end of a command to start of the next"),
            "ms",
            gaps,
        )
        .at_most(POLL + TO_START),
        Figure::new(
            format!("{fleet}: requests of one in an hour"),
            "",
            one(each * 3600.0),
        ),
        Figure::new(
            format!("{fleet}: the busiest 100 ms of 30 s, requests"),
            "",
            one(busiest),
        )
        // Fifty that look every 2 s are two or three in 100 ms; fifteen at once would be a burst.
        .at_most(15.0),
        Figure::new(
            format!("{fleet}: share of a blob's target"),
            "%",
            one(100.0 * rate / TARGET),
        )
        .at_most(6.0),
    ])
}

/// The most that fell into a stretch of this length.
fn busiest(at: &[u64], stretch: u64) -> f64 {
    let mut sorted = at.to_vec();
    sorted.sort_unstable();
    let most = sorted
        .iter()
        .enumerate()
        .map(|(first, begin)| sorted[first..].partition_point(|at| at - begin < stretch))
        .max();
    most.unwrap_or(0) as f64
}

/// A holder that is told to stop while its command still has something to do.
fn fast_lane(scene: &Path, probe: &Path) -> Result<Vec<Figure>, String> {
    let (mut gaps, mut asked) = (Samples::default(), Samples::default());
    for round in 0..LANE_RUNS {
        let name = format!("figures/lane-{round}");
        let proxy = Proxy::before(azurite::azurite().port);
        let (direct, counted) = (
            azurite::connection_string(azurite::azurite().port),
            azurite::connection_string(proxy.port),
        );
        let gate = scene.join(format!("lane-{round}"));
        nix::unistd::mkfifo(&gate, Mode::S_IRWXU).map_err(|errno| errno.to_string())?;
        let log = scene.join(format!("lane-{round}.log"));
        let mut command = trafficcop(Lock::Blob(&name, &direct));
        command
            .arg("--")
            .args([probe.as_os_str(), OsStr::new("linger"), gate.as_os_str()]);
        let mut holder = Instance::start(&mut command, &log);
        holder.told()?;
        let mut command = trafficcop(Lock::Blob(&name, &counted));
        command.arg("--").arg(probe).arg("hold");
        let mut standby = Instance::start(&mut command, &log);
        let said = |word: &str| {
            await_for(word, || {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                said.contains(word).then_some(())
            })
        };
        said("standing by")?;
        let _ = kill(Pid::from_raw(holder.pid()), Signal::SIGTERM);
        // Longer than a poll: the standby has seen that it drains.
        std::thread::sleep(Duration::from_millis(POLL as u64 + 200));
        std::thread::sleep(Duration::from_millis(FAST_LANE as u64).mul_f64(fastrand::f64()));
        let before = proxy.log().len();
        let opened = std::fs::File::options().write(true).open(&gate);
        drop(opened.map_err(|error| error.to_string())?);
        let ended = holder.told()?;
        let began = standby.told()?;
        gaps.push(began - ended);
        asked.push((proxy.log().len() - before) as f64);
        standby.let_go();
        standby.told()?;
        standby.succeed()?;
        while holder.ended().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(vec![
        Figure::new(
            "blob, holder asked to stop: end of its command to start of the next",
            "ms",
            gaps,
        )
        .at_most(FAST_LANE + TO_START),
        Figure::new(
            "the same: requests of the standby from one to the other",
            "",
            asked,
        ),
    ])
}
