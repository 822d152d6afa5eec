//! Images for trueshot: reading data sets, embedding images, and training the networks that embed them.
//!
//! Start with [`Collection`], which lists the labelled images of a folder, an archive, a list or a published data set,
//! and [`Embedder`], which embeds them:
//!
//! ```
//! use trueshot_vision::backbone::BackboneOptions;
//! use trueshot_vision::cache::CacheLocation;
//! use trueshot_vision::split::Split;
//! use trueshot_vision::{Collection, Embedder, SourceOptions};
//!
//! # if trueshot_vision::Omniglot::embedded().is_err() { return Ok(()) }
//! let mut images = Collection::open("omniglot", SourceOptions::default())?;
//! images.keep_split(&Split::omniglot("val")?)?;
//! images.keep_first(1);
//! let embedder = Embedder::open("omniglot-conv4", &BackboneOptions::default(), &CacheLocation::Disabled)?;
//! let embedded = embedder.embed_collection(&images, &())?;
//! assert_eq!(embedded.embeddings.len(), images.classes().len());
//! # Ok::<(), trueshot_vision::Error>(())
//! ```
//!
//! - Sources: [`source`] and [`split`]; [`survey`] compares a data set with its published numbers; [`outliers`] writes
//!   folders of outliers; [`pickle`] reads Python's pickles without calling functions; [`omniglot`] is the built-in
//!   data set, made of [`drawing`]s.
//! - Images: [`decoded_image`] decodes files within a [`memory_budget`]; [`resize`], [`preprocess`], [`augment`],
//!   [`thumbnail`].
//! - Embedding: [`embedder`] (in memory) and [`mod@embed`] (into a file), with the [`cache`]; [`backbone`], the
//!   interface of its networks ([`network`]), the queue to a GPU ([`batch_queue`]), [`onnx`] models in worker
//!   processes, and the [`built_in`] models. [`labelled`] holds embeddings with their labels and images. [`export`]
//!   writes a classifier with its backbone as an ONNX model.
//! - Training: [`training`], its [`dataset`]s and batch [`loader`], the [`overlap`] of training and validation, and the
//!   method [`maml`].

pub mod augment;
pub mod backbone;
pub mod batch_queue;
pub mod built_in;
pub mod cache;
pub mod dataset;
mod decode_memory;
pub mod decoded_image;
pub mod drawing;
pub mod embed;
pub mod embedder;
pub mod error;
pub mod export;
#[cfg(feature = "cuda")]
mod gpu_network;
mod image_measures;
pub mod labelled;
pub mod loader;
pub mod maml;
pub mod memory_budget;
pub mod network;
pub mod omniglot;
pub mod onnx;
pub mod outliers;
pub mod overlap;
pub mod pickle;
pub mod preprocess;
pub mod resize;
pub mod source;
pub mod split;
pub mod survey;
#[cfg(test)]
mod testing;
pub mod thumbnail;
pub mod training;
mod webp_tables;

pub use augment::Augmentation;
pub use backbone::Backbone;
pub use dataset::Dataset;
pub use decoded_image::{Channels, DecodeLimits, DecodedImage, is_svg};
pub use drawing::Bitmap;
pub use embedder::{EmbeddedImages, Embedder, ImageInput};
pub use error::{Error, Result, Skipped, Unreadable, UnsupportedFormat};
pub use labelled::LabelledRows;
pub use omniglot::{Omniglot, OmniglotError, OmniglotHalf};
pub use preprocess::Preprocessing;
pub use resize::{Fit, Resampling};
pub use source::{Collection, SourceOptions};
