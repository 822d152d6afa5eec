//! Few-shot learning when some labels are wrong.
//!
//! How data walks through this library: [`embeddings`] (feature vectors in a file) become episodes
//! ([`episode`]), an episode under one kind of [`noise`] becomes a [`task`], a [`method`] learns from it and
//! yields a [`classifier`], [`evaluate`] does so ten thousand times and [`report`] shows what came out.

pub mod atomic;
pub mod classifier;
pub mod embeddings;
pub mod episode;
pub mod error;
pub mod evaluate;
pub mod method;
pub mod noise;
pub mod report;
pub mod rng;
pub mod task;

pub use embeddings::Embeddings;
pub use error::{Error, Result};

/// Refuses a `TRUESHOT_ISA` that this processor does not have: programs call it at their start.
pub fn check_instructions() -> std::result::Result<(), impl std::error::Error + Send + Sync> {
    trueshot_nn::Isa::from_environment().map(drop)
}
