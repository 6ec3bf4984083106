//! The blob store against a scripted server: every meaning of every answer, lost replies, and data
//! that must never be sent or shown.

mod acquire;
mod clock;
mod missing;
mod once;
mod own_answers;
mod release;
mod renew;
mod secrets;
mod server;
mod token;
mod unanswered;
