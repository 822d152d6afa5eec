//! The limits on requests and connections: length and speed of bodies, numbers of items and classes, length of names,
//! time, and how many requests and connections there may be at the same time.

use std::time::Duration;

/// Items of a request.
pub const MAX_ITEMS: usize = 20_000;
/// Items a classifier may be made of: all of them are compared with each other at once.
pub const MAX_FITTED_ITEMS: usize = 2_000;
/// Classes of a support set.
pub const MAX_CLASSES: usize = 500;
/// Items times classes a classifier may be made of, for the same reason.
pub const MAX_FITTED_PAIRS: usize = 100_000;
/// Classes times numbers of a row a classifier may have: some methods learn a weight for each.
pub const MAX_FITTED_WEIGHTS: usize = 1 << 22;
/// Numbers of a row.
pub const MAX_DIM: usize = 1 << 16;
/// Bytes of a name, of an item or of a class: replies repeat them for every neighbour.
pub const MAX_NAME_BYTES: usize = 512;
/// Classifiers that are kept.
pub const MAX_CLASSIFIERS: usize = 1_000;
/// Bytes of a body that a client must send within [`Limits::stall_time`], unless it is complete before.
pub const MIN_PROGRESS_BYTES: usize = 10 << 10;

/// The limits that can be chosen when the server is started.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's body, and of an answer.
    pub body: usize,
    /// Bytes of all bodies and answers that are held at once.
    pub bodies: usize,
    /// Pixels of a picture.
    pub pixels: u64,
    /// Bytes that decoded pictures may take, over all threads; a picture that needs more is refused.
    pub picture_memory: u64,
    /// How long a request may take, waiting included.
    pub request_time: Duration,
    /// Requests that are worked on at once.
    pub concurrent_requests: usize,
    /// Requests that may wait besides.
    pub queued_requests: usize,
    /// Connections that may be open at once.
    pub connections: usize,
    /// How long the headers of a request may take to arrive.
    pub header_time: Duration,
    /// How long the server waits for `MIN_PROGRESS_BYTES` bytes of a body, or for a client to take some of its answer.
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
