//! Pictures: where they come from, and what turns them into numbers.
//!
//! - [`source`]: folders, archives and lists of labelled images, with [`split`] files;
//! - [`picture`]: decoding of files from outside, within a budget of [`memory_budget`]; [`resize`]; [`preprocess`]; [`augment`];
//! - [`backbone`], [`embedder`] and [`mod@embed`]: from images to embeddings in memory or in a file, those made before
//!   from the [`cache`];
//! - [`dataset`], [`loader`], [`overlap`] and [`training`]: images in memory, and a backbone trained on them;
//! - [`pickle`]: Python's pickles, read without executing anything; [`survey`]: what a data set is made of;
//!   [`outliers`]: a set of outliers made out of ImageNet;
//! - [`onnx`]: image models of other programs, in a process of their own;
//! - [`maml`]: the one method that looks at images themselves;
//! - [`thumbnail`]: small images for pages;
//! - [`omniglot`]: the built-in data set, 1,623 characters of 50 alphabets, each drawn by 20 people, made of
//!   [`drawing`]s: ink on paper, with their form in an HTML page;
//! - [`built_in`]: the models that come with the program, trained on them.

pub mod augment;
pub mod backbone;
pub mod built_in;
pub mod cache;
pub mod dataset;
mod decode_memory;
pub mod decoded_image;
pub mod drawing;
pub mod embed;
pub mod embedder;
pub mod error;
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
pub mod thumbnail;
pub mod training;
mod webp_tables;

pub use augment::Augmentation;
pub use backbone::Backbone;
pub use dataset::Dataset;
pub use decoded_image::{Channels, DecodeLimits, DecodedImage};
pub use drawing::Bitmap;
pub use embedder::{EmbeddedImages, Embedder, ImageInput};
pub use error::{Error, Result, Skipped, Unreadable};
pub use labelled::LabelledRows;
pub use omniglot::{Omniglot, OmniglotError, OmniglotHalf};
pub use preprocess::Preprocessing;
pub use resize::{Fit, Resampling};
pub use source::{Collection, SourceOptions};
