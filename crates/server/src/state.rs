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

/// The settings of a server.
pub struct ServerSettings {
    /// The folder of the classifiers.
    pub data_dir: PathBuf,
    /// The accepted hosts and the token.
    pub access: Access,
    /// The limits on requests and connections.
    pub limits: Limits,
}

/// The state of a running server.
pub struct App {
    pub(crate) embedder: Embedder,
    pub(crate) registry: Registry,
    pub(crate) store: Store,
    pub(crate) admission: Admission,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
}

/// The state as handlers receive it.
pub type SharedApp = Arc<App>;

impl App {
    /// Makes the state of a server. Also returns a warning for every classifier that cannot be read. The memory
    /// budget for decoded images is that of the process: see [`memory_budget::decoded_images`].
    pub fn new(embedder: Embedder, settings: ServerSettings) -> trueshot::Result<(SharedApp, Vec<String>)> {
        let ServerSettings { data_dir, access, limits } = settings;
        let (store, warnings) = Store::open(&data_dir)?;
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
        Ok((Arc::new(app), warnings))
    }
}
