//! Shared by the integration tests: `mod support;`.
#![allow(dead_code)]

pub mod hdfs;
pub mod store_suite;
