//! Few-shot learning when some labels are wrong: find them, learn in spite of them, and measure how well that works.
//!
//! The library works on feature vectors ([`Embeddings`]) that any network may have computed; `trueshot-vision` computes
//! them from images. Three calls cover most uses.
//!
//! **Audit** labelled rows: which labels are wrong, and what should they be?
//!
//! ```
//! use trueshot::{Audit, Embeddings};
//! # fn example() -> trueshot::Result<()> {
//!
//! let rows = Embeddings::open("features.safetensors")?;
//! let audit = Audit::of(&rows).certainty(0.8).run()?;
//! for item in audit.items.iter().filter(|item| item.is_suspect()) {
//!     println!("{}: {} -> {:?} ({:.0} %)", item.item, item.given, item.suggested, 100.0 * item.p_wrong);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Fit** a classifier that withstands wrong labels, and **predict** with calibrated probabilities:
//!
//! ```
//! use trueshot::{Embeddings, Predictor};
//! # fn example(query: &[f32]) -> trueshot::Result<()> {
//!
//! let classifier = Predictor::of(Embeddings::open("features.safetensors")?).fit()?;
//! let prediction = &classifier.predict(&[query])?[0];
//! println!("{} ({:.2})", classifier.classes()[prediction.class as usize], prediction.probability);
//! # Ok(())
//! # }
//! ```
//!
//! **Evaluate** methods on thousands of small classification problems with a known share of wrong labels:
//!
//! ```
//! use trueshot::{Embeddings, Evaluation};
//! # fn example() -> trueshot::Result<()> {
//!
//! let rows = Embeddings::open("features.safetensors")?;
//! let table = Evaluation::of(&rows).noise("symmetric=20,40")?.methods("protonet,median,relabel")?.run()?;
//! println!("{table}");
//! # Ok(())
//! # }
//! ```
//!
//! These examples open a file; those of [`audit`], [`predictor::Predictor::of`] and [`evaluate`] make their own data
//! and run as they are.
//!
//! # Modules
//!
//! From data to results: [`embeddings`] (rows and labels, from files or memory) -> [`episode`] (small classification
//! problems drawn from them, with wrong labels made by [`noise`]) -> [`task`] (the support set of an episode, which are
//! its labelled items, and the queries to classify) -> [`method`] (learns from the support set) -> [`classifier`] (the
//! result) -> [`evaluate`] (accuracy over many episodes) -> `report`. For collections: [`audit`] (find wrong labels) ->
//! [`repair`] (carry out its suggestions), and [`predictor`] (a classifier in a file). `training` trains the heads,
//! TraNFS and Relabel: networks that read the feature vectors of an episode and find its wrong labels.
//!
//! # Features
//!
//! On by default: `arrow`, `npz` and `parquet` read these formats (`.safetensors` and `.npy` are always read), `mmap`
//! maps files into memory instead of reading them, `zip` writes repaired copies of folders as archives, `report`
//! formats results as text, pages and plots, `train` adds training. Without them the library builds in a fraction of
//! the time, and for WebAssembly. Off by default: `cuda` trains heads on NVIDIA GPUs.
//!
//! Results depend on the seed and the instruction set, never on the number of threads.

// Code that several optional parts share is unused if they are all left out.
#![cfg_attr(
    not(all(feature = "npz", feature = "parquet", feature = "report", feature = "train", feature = "zip")),
    allow(dead_code)
)]

#[doc(hidden)]
pub mod arrays;
#[doc(hidden)]
pub mod atomic;
#[cfg(feature = "report")]
pub mod attention;
pub mod audit;
mod cholesky;
pub mod classifier;
mod csv_field;
pub mod embeddings;
pub mod episode;
pub mod error;
pub mod evaluate;
#[doc(hidden)]
pub mod guard;
#[cfg(any(feature = "report", feature = "train"))]
mod label_layout;
#[doc(hidden)]
pub mod lock;
pub mod method;
pub mod model;
pub mod noise;
pub mod onnx_graph;
pub mod predictor;
pub mod progress;
#[doc(hidden)]
pub mod ranges;
pub mod repair;
#[cfg(feature = "report")]
pub mod report;
#[doc(hidden)]
pub mod resample;
pub mod rng;
pub mod task;
#[doc(hidden)]
pub mod tensors;
#[cfg(feature = "train")]
pub mod training;
mod visible;

pub use audit::{Audit, Verdict};
pub use embeddings::Embeddings;
pub use error::{Error, Result};
pub use evaluate::Evaluation;
pub use method::Registry;
pub use noise::{Noise, NoiseKind};
pub use predictor::{Prediction, Predictor};
pub use progress::Progress;
pub use repair::RepairPlan;

/// Checks that this processor has the instruction set that `TRUESHOT_ISA` names. Programs call it when they start.
pub fn check_instructions() -> std::result::Result<(), impl std::error::Error + Send + Sync> {
    trueshot_nn::Isa::from_environment().map(drop)
}
