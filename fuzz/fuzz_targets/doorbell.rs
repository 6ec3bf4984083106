#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trafficcop_fuzz::targets::doorbell(bytes));
