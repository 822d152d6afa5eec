//! The limits on requests and connections: size and speed of bodies, numbers of items and classes, length of names,
//! time, and numbers of simultaneous requests and connections.

use std::time::Duration;

/// Maximum number of items in a request.
pub const MAX_ITEMS: usize = 20_000;
/// Maximum number of items to fit a classifier on: all pairs of items are compared at once.
pub const MAX_FITTED_ITEMS: usize = 2_000;
/// Maximum number of classes in a support set.
pub const MAX_CLASSES: usize = 500;
/// Maximum of items times classes to fit a classifier on: methods score every item for every class.
pub const MAX_FITTED_PAIRS: usize = 100_000;
/// Maximum of classes times dimensions of a classifier: some methods learn a weight for each pair.
pub const MAX_FITTED_WEIGHTS: usize = 1 << 22;
/// Maximum dimension of a row.
pub const MAX_DIM: usize = 1 << 16;
/// Maximum length in bytes of the name of an item or a class: responses repeat names for every neighbour.
pub const MAX_NAME_BYTES: usize = 512;
/// Maximum number of stored classifiers.
pub const MAX_CLASSIFIERS: usize = 1_000;
/// Number of bytes of a body that must arrive within every [`Limits::stall_time`], unless the body is complete before.
pub const MIN_PROGRESS_BYTES: usize = 10 << 10;

/// The limits that the user can set when the server is started.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum length in bytes of a request body, and of a response.
    pub body: usize,
    /// Maximum number of bytes of all bodies and responses in memory; raised to twice `body` if it is less.
    /// Descriptions of the server and of a single classifier are not counted.
    pub bodies: usize,
    /// Maximum number of pixels of an image.
    pub pixels: u64,
    /// Memory budget in bytes for decoded images, over all threads; an image that needs more is refused.
    pub picture_memory: u64,
    /// How long a request may take, including the time in the queue.
    pub request_time: Duration,
    /// Maximum number of requests that compute at once.
    pub concurrent_requests: usize,
    /// Maximum number of requests in the queue.
    pub queued_requests: usize,
    /// Maximum number of open connections.
    pub connections: usize,
    /// How long the headers of a request may take to arrive.
    pub header_time: Duration,
    /// How long the server waits for `MIN_PROGRESS_BYTES` bytes of a body, or for a client to read some of its
    /// response.
    pub stall_time: Duration,
    /// How long a connection may stay open between two requests.
    pub idle_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body: 64 << 20,
            bodies: 256 << 20,
            pixels: 50_000_000,
            picture_memory: 384 << 20,
            request_time: Duration::from_secs(60),
            concurrent_requests: std::thread::available_parallelism().map_or(2, usize::from),
            queued_requests: 256,
            connections: 512,
            header_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(75),
        }
    }
}
