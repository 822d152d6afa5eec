//! Tests of the image crate through its public interface.

mod backbone;
mod baselines;
mod embedder;
#[path = "../image_kinds/mod.rs"]
mod image_kinds;
mod images;
mod joint;
mod network;
mod published;
mod sources;
mod striped_images;
mod training;
mod zip_archives;
