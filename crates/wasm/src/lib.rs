//! The engine of the pages that `trueshot export` writes: [`Engine`] classifies decoded images.
//!
//! `build.py` in this folder compiles the crate to a WebAssembly module for browsers, which `interface` describes. The module
//! is part of the repository, so that neither users nor `cargo build` need the WebAssembly target.

mod engine;
mod interface;

pub use engine::Engine;
