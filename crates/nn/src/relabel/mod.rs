//! Relabel.
mod attention;
mod batch;
mod edge_network;
mod edges;
mod losses;
mod pooling;
mod space;
mod start;
mod verdict;
pub use edges::{edge_features, EDGE_FEATURES, NEUTRAL};
pub use space::Space;
