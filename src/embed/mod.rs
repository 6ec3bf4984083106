//! The library's face: compete for control inside a program, instead of wrapping a command.
//!
//! Used by programs; `trafficcop run` does not need it. It drives the same [`drive`](crate::driver::drive)
//! with a workload that is the calling program itself: what a guardian would do by signals is done here
//! by [`TrafficCop::has_control`] turning false and by [`Guard::run`] dropping its future. Nothing here
//! can stop the program's own code, so the promise is only as good as its asking.
//!
//! | file | purpose |
//! |---|---|
//! | `builder` | [`Builder`]: which lock, and how to compete for it |
//! | `traffic_cop` | [`TrafficCop`]: one instance that competes |
//! | `guard` | [`Guard`]: control, as long as it lasts |
//! | `message` | [`MessageLock`]: the same for a message of a queue |
//! | `program` | the program as a workload, and what it shares with those above |
//! | `error` | [`Error`], [`Lost`] |

mod builder;
mod error;
mod guard;
mod message;
mod program;
mod traffic_cop;

pub use builder::Builder;
pub use error::{Error, Lost};
pub use guard::Guard;
pub use message::MessageLock;
pub use program::Control;
pub use traffic_cop::TrafficCop;
