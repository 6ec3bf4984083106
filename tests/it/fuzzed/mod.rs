//! Readers of foreign bytes, given broken bytes: for each target 3,000 inputs from valid ones, the
//! same on every run. `FUZZ_COUNT` sets the number and `FUZZ_SEED` the seed; `fuzz/` has the same
//! targets for libFuzzer.

mod mutator;
#[expect(unreachable_pub, reason = "fuzz/ has the same file, as a library")]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;

use self::targets::TARGETS;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect(name))
}

fn play(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.expect("one of the targets");
    let (seed, count) = (number("FUZZ_SEED", 1), number("FUZZ_COUNT", 3_000));
    let seeds = (target.seeds)();
    for bytes in seeds.iter().map(|seed| &**seed).chain([&b""[..]]) {
        (target.holds)(bytes);
    }
    let mut rng = Rng::with_seed(seed);
    let mut longest = 0;
    for at in 0..count {
        let bytes = mutator::mutated(&mut rng, &seeds);
        longest = longest.max(bytes.len());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.holds)(&bytes))) {
            eprintln!(
                "{name}: input {at} of FUZZ_SEED={seed} ({} bytes): {:?}",
                bytes.len(),
                String::from_utf8_lossy(&bytes)
            );
            resume_unwind(panic);
        }
    }
    println!("{name}: {count} inputs of FUZZ_SEED={seed}, up to {longest} bytes long");
}

macro_rules! played {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            play(stringify!($name));
        })*

        #[test]
        fn every_target_is_played_here_and_in_fuzz() {
            let played = [$(stringify!($name)),*];
            let targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(targets, played);
            let fuzz = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
            let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
            for name in targets {
                assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}");
                let path = fuzz.join(format!("fuzz_targets/{name}.rs"));
                let text = std::fs::read_to_string(path).expect("a target");
                assert!(text.contains(&format!("targets::{name}")), "{name}");
            }
        }
    };
}

played! {
    lock_record
    version_record
    blob_metadata
    task_log
    connection_string
    sas
    target_url
    amqp_frames
    event_log
    control_frames
    doorbell
}
