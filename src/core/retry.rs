//! retry (to be written)
