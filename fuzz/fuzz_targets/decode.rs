//! Every decoder of on-store bytes: `cargo +nightly fuzz run decode fuzz/corpus tests/golden`.
#![no_main]

#[path = "../../tests/support/decode_all.rs"]
mod decode_all;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| decode_all::decode_all(bytes));
