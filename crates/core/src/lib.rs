//! trueshot
pub mod atomic;
pub mod embeddings;
pub mod error;
pub mod noise;
