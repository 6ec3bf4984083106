//! file (to be written)
