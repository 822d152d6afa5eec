//! Tests of the library through its public interface.

mod checksums;
mod formats;
mod reference;
#[path = "../samples/mod.rs"]
mod samples;
mod training_page;
