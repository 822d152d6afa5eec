//! What a request may cost. Everything that comes from outside is bounded before it is believed: how long a body may be,
//! how many items and classes it may have, how long names are, how large numbers, how much time it may take and how
//! many may be at it at once.

use std::time::Duration;

/// Items of a request.
pub const MOST_ITEMS: usize = 20_000;
/// Items a classifier may be made of: all of them are compared with each other at once.
pub const MOST_FITTED_ITEMS: usize = 2_000;
/// Classes of a support set.
pub const MOST_CLASSES: usize = 500;
/// Items times classes a classifier may be made of, for the same reason.
pub const MOST_FITTED_PAIRS: usize = 100_000;
/// Classes times numbers of a row a classifier may have: some methods learn a weight for each.
pub const MOST_FITTED_WEIGHTS: usize = 1 << 22;
/// Numbers of a row.
pub const MOST_NUMBERS: usize = 1 << 16;
/// Bytes of a name, of an item or of a class: replies repeat them for every neighbour.
pub const LONGEST_NAME: usize = 512;
/// Classifiers that are kept.
pub const MOST_CLASSIFIERS: usize = 1_000;

/// What whoever starts the server can choose.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Bytes of all bodies that are held at once.
    pub bodies: usize,
    /// Pixels of a picture.
    pub pixels: u64,
    /// How long a request may take, waiting included.
    pub time: Duration,
    /// Requests that are worked on at once.
    pub at_once: usize,
    /// Requests that may wait besides.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body: 64 << 20,
            bodies: 256 << 20,
            pixels: 50_000_000,
            time: Duration::from_secs(60),
            at_once: std::thread::available_parallelism().map_or(2, usize::from),
            waiting: 256,
        }
    }
}
