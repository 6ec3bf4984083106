//! The blob store against a server that plays a script: every meaning of every answer, lost
//! replies, and what must never be sent or shown.

#[path = "blob_store/acquire.rs"]
mod acquire;
#[path = "blob_store/clock.rs"]
mod clock;
#[path = "blob_store/missing.rs"]
mod missing;
#[path = "blob_store/once.rs"]
mod once;
#[path = "blob_store/release.rs"]
mod release;
#[path = "blob_store/renew.rs"]
mod renew;
#[path = "blob_store/secrets.rs"]
mod secrets;
#[path = "blob_store/server.rs"]
mod server;
#[path = "blob_store/unanswered.rs"]
mod unanswered;
