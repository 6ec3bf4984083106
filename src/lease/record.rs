//! record (to be written)
