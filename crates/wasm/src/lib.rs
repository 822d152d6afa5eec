//! The engine of the pages that `trueshot export` writes: [`Engine`] classifies decoded images in the browser, with a
//! backbone (the network that computes embeddings) and a classifier of embeddings.
//!
//! `build.py` in the folder of this crate compiles it to a WebAssembly module, `crates/cli/assets/engine.wasm`, which
//! the export puts into the page. `interface` has the functions that the script of the page calls. The module is part
//! of the repository, so that neither users nor `cargo build` need the WebAssembly target.

mod engine;
mod interface;

pub use engine::Engine;
