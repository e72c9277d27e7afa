//! Shared by the integration tests: `mod support;`.
#![allow(dead_code)]

pub mod differential;
pub mod hdfs;
pub mod mount;
pub mod store_suite;
