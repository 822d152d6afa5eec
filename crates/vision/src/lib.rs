//! Pictures: the drawings that come with trueshot, and what turns a picture into numbers.
//!
//! - [`drawing`]: a picture of ink on paper, its grey values and its form in an HTML page;
//! - [`omniglot`]: the built-in data set, 1,623 characters of 50 alphabets, each drawn by 20 people;
//! - [`mod@fixed_feature`]: a feature of a drawing that needs no training, for the demo and for tests.

pub mod drawing;
pub mod fixed_feature;
pub mod omniglot;

pub use drawing::Bitmap;
pub use fixed_feature::fixed_feature;
pub use omniglot::{Omniglot, OmniglotError, Split};
