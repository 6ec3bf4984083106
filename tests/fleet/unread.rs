//! A supervisor that does not read: its guardian's loop keeps the reports for it.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Deadlines, Exit, WorkloadEvent};
use trafficcop_guardian::wire::{Event, FRAME, Request};
use trafficcop_guardian::{EventLoop, Ready};

use super::kernel::Kernel;

const CHILDREN: Ready = Ready {
    nothing: false,
    wall: false,
    children: true,
    socket: false,
};

#[test]
fn end_of_a_command_is_reported_despite_many_unread_stops() {
    let kernel = Kernel::new(false);
    let mut event_loop = EventLoop::begin(kernel.clone(), Duration::ZERO);
    let start = Request::Start {
        program: 0,
        in_control: false,
        deadlines: Deadlines {
            term_at: Instant::FOREVER,
            kill_at: Instant::FOREVER,
        },
        stop_signal: libc::SIGTERM,
        stop_to: trafficcop_guardian::StopTo::Group,
        env: u32::try_from(TOKEN.len()).expect("short"),
        release_info: 0,
        lock: false,
        input: false,
    };
    let sent = [&start.encode()[..], TOKEN].concat();
    kernel.facts().to_guardian.push_back((sent, None));
    event_loop.turn(Ready {
        socket: true,
        ..CHILDREN
    });
    kernel.facts().tree.as_mut().expect("a command").executed = true;
    event_loop.turn(CHILDREN);

    kernel.facts().is_full = true;
    for stop in 0..1000 {
        kernel.facts().stopped = true;
        // A jump of the wall clock is no reason to keep a stop twice.
        kernel.facts().wall_jumped = stop % 2 == 0;
        event_loop.turn(Ready {
            wall: true,
            ..CHILDREN
        });
    }
    kernel.facts().tree.as_mut().expect("a command").main = false;
    event_loop.turn(CHILDREN);

    kernel.facts().is_full = false;
    event_loop.turn(Ready {
        socket: true,
        ..CHILDREN
    });
    let words = std::mem::take(&mut kernel.facts().to_supervisor);
    let heard: Vec<_> = (words.chunks_exact(FRAME))
        .map(|frame| Event::decode(frame.try_into().expect("a frame")).expect("a word"))
        .collect();
    let is = |event: WorkloadEvent| heard.contains(&Event::Workload(event));
    assert!(is(WorkloadEvent::Stopped), "{heard:?}");
    assert!(is(WorkloadEvent::Exited(Exit::Code(0))), "{heard:?}");
    let last = heard.last();
    let empty = matches!(last, Some(Event::Workload(WorkloadEvent::TreeEmpty { .. })));
    assert!(empty, "{heard:?}");
}

const TOKEN: &[u8] = b"TRAFFICCOP_TOKEN=1\0";
