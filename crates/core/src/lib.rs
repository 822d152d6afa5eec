//! Few-shot learning when some labels are wrong.
//!
//! How data walks through this library: [`embeddings`] (feature vectors in a file) become episodes
//! ([`episode`]), an episode under one kind of [`noise`] becomes a [`task`], a [`method`] learns from it and
//! yields a [`classifier`], [`evaluate`] does so ten thousand times and [`report`] shows what came out.
//!
//! ```
//! use trueshot::episode::{EpisodeSpec, Sampler};
//! use trueshot::evaluate::{Details, Experiment, evaluate};
//! use trueshot::method::Registry;
//! use trueshot::noise::{Noise, NoiseKind};
//!
//! // Five classes of thirty points around different places; `Embeddings::open` reads a file instead.
//! let scatter = |row: usize, column: usize| ((row * 7919 + column * 104_729) % 997) as f32 / 400.0;
//! let place = |row: usize, column: usize| scatter(row, column) + if row / 30 == column { 3.0 } else { 0.0 };
//! let values = (0..150 * 8).map(|i| place(i / 8, i % 8)).collect();
//! let labels = (0..150).map(|row| format!("class {}", row / 30)).collect();
//! let data = trueshot::Embeddings::from_rows(values, 8, labels)?;
//!
//! let noise = vec![Noise::new(NoiseKind::Symmetric, 0.4)?];
//! let episodes = Sampler::new(&data, None, EpisodeSpec::default(), noise)?;
//! let registry = Registry::default();
//! let methods = [registry.parse("protonet")?, registry.parse("median:eps=0.1")?];
//! let experiment = Experiment {
//!     embeddings: &data,
//!     outliers: None,
//!     episodes: &episodes,
//!     count: 100,
//!     methods: &methods,
//!     baseline: "protonet",
//!     details: Details::default(),
//! };
//! let found = evaluate(&experiment, &())?;
//! let [protonet, median] = &found.settings[0].methods[..] else { unreachable!() };
//! assert!(median.accuracy > protonet.accuracy);
//! # Ok::<(), trueshot::Error>(())
//! ```

// Code that several optional parts share is unused if they are all left out.
#![cfg_attr(
    not(all(feature = "npz", feature = "parquet", feature = "report", feature = "train")),
    allow(dead_code)
)]

pub mod arrays;
pub mod atomic;
#[cfg(feature = "report")]
pub mod attention;
pub mod audit;
pub mod classifier;
mod csv_field;
pub mod embeddings;
pub mod episode;
pub mod error;
pub mod evaluate;
pub mod guard;
pub mod lock;
pub mod method;
pub mod model;
pub mod noise;
pub mod predictor;
pub mod progress;
pub mod ranges;
pub mod repair;
#[cfg(feature = "report")]
pub mod report;
pub mod rng;
pub mod task;
pub mod tensors;
#[cfg(feature = "train")]
pub mod training;
mod visible;

pub use audit::{Audit, Verdict};
pub use embeddings::Embeddings;
pub use error::{Error, Result};
pub use evaluate::Evaluation;

/// Refuses a `TRUESHOT_ISA` that this processor does not have: programs call it at their start.
pub fn check_instructions() -> std::result::Result<(), impl std::error::Error + Send + Sync> {
    trueshot_nn::Isa::from_environment().map(drop)
}
