//! Shared by the integration tests: `mod support;`.
#![allow(dead_code)]

pub mod calls;
pub mod daemon;
pub mod differential;
pub mod fetch;
pub mod flink;
pub mod hdfs;
pub mod http;
pub mod java;
pub mod load;
pub mod mapping;
pub mod mount;
pub mod packing;
pub mod ports;
pub mod posix;
pub mod programs;
pub mod scratch;
pub mod store_suite;
pub mod suites;
pub mod trees;
