//! The fuzz targets' bodies, as the bounded test has them.

#[path = "../../tests/it/fuzzed/targets.rs"]
pub mod targets;
