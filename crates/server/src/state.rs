//! The state that all requests share: embedder, store, limits and metrics.

use std::path::PathBuf;
use std::sync::Arc;

use trueshot::method::Registry;
use trueshot_vision::{DecodeLimits, Embedder, memory_budget};

use crate::access::Access;
use crate::admission::Admission;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::store::Store;

/// What a server is started with.
pub struct ServerSettings {
    /// Where classifiers are kept.
    pub data_dir: PathBuf,
    /// Who may ask.
    pub access: Access,
    /// What a request may cost.
    pub limits: Limits,
}

/// A server at work.
pub struct App {
    pub(crate) embedder: Embedder,
    pub(crate) registry: Registry,
    pub(crate) store: Store,
    pub(crate) admission: Admission,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
}

/// What handlers get.
pub type SharedApp = Arc<App>;

impl App {
    /// Puts a server together; classifiers that cannot be read are named in the second half. The memory for decoded
    /// pictures is the process's: see [`memory_budget::decoded_images`].
    pub fn new(embedder: Embedder, settings: ServerSettings) -> trueshot::Result<(SharedApp, Vec<String>)> {
        let ServerSettings { data_dir, access, limits } = settings;
        let (store, unreadable) = Store::open(&data_dir)?;
        memory_budget::decoded_images().set_limit(limits.picture_memory);
        let decoding = DecodeLimits { pixels: limits.pixels, memory: limits.picture_memory };
        let app = App {
            embedder: embedder.with_decode_limits(decoding),
            registry: Registry::default(),
            store,
            admission: Admission::new(&limits),
            access,
            limits,
            metrics: Metrics::default(),
        };
        Ok((Arc::new(app), unreadable))
    }
}
