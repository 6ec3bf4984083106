//! blob (to be written)
