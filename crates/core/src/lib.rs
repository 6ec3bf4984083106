//! Decisions of one instance. They are pure: no decision reads a clock, awaits or sends a signal.
//!
//! [`Tenure`] takes the present moment and one [`Event`], and returns the [`Action`]s for the driver, in
//! order. The whole safety argument is here, tested in virtual time.

pub mod budget;
pub mod clock;
pub mod condition;
pub mod doorbell;
pub mod event;
pub mod health;
pub mod hold_policy;
pub mod machine;
pub mod observed;
pub mod retry;
pub mod service_time;
pub mod stop;
pub mod tenure;
pub mod units;
pub mod util;

pub use budget::{Budget, BudgetError, Deadlines, Start};
pub use condition::Unfit;
pub use doorbell::{Bell, Ring};
pub use event::{
    Action, Cause, Cordon, Ending, Event, Exit, Failed, Failure, Grant, HandOverReason, HolderInfo,
    Notice, WorkloadEvent,
};
pub use health::{
    Health, HealthEvent, HealthRecord, HealthRules, HealthWords, Hung, Look, ProbeFailure,
    ProbeRules, TlsFailure, WatchdogWord,
};
pub use hold_policy::{After, HoldPolicy, OnFailure, Once, Outcome, Restart, TaskResult};
pub use observed::Observed;
pub use tenure::{AUTH_PATIENCE, IfLost, Rules, State, Tenure};
