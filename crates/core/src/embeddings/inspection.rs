//! The result of inspecting embeddings: [`Inspection`] and its parts, whose fields are the keys of
//! `trueshot inspect --format json`. [`inspect`](super::inspect()) computes it.

use std::path::PathBuf;

use serde::Serialize;

use super::features::Precision;
use super::fingerprint::Fingerprint;

/// The number of queries per class that [`Inspection::largest_shots`] assumes; most papers use 15. An episode is a
/// small classification problem drawn from the data, and its queries are the items to classify.
pub(super) const QUERIES: usize = 15;

/// A description of an embeddings file and of everything unusual in it, as [`inspect`](super::inspect()) returns it.
///
/// ```
/// use trueshot::Embeddings;
/// use trueshot::embeddings::inspect;
///
/// let labels = ["cat", "dog", "cat"].map(String::from).to_vec();
/// let inspection = inspect(&Embeddings::from_rows(vec![1.0, 1.0, 2.0], 1, labels)?);
/// assert_eq!((inspection.rows, inspection.duplicates.rows, inspection.duplicates.across_classes), (3, 1, 1));
/// assert!(inspection.warnings[0].starts_with("1 set of identical rows crosses classes"));
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The file that was read; `None` for data in memory.
    pub path: Option<PathBuf>,
    /// The number format in which features are stored.
    pub precision: Precision,
    /// The number of rows.
    pub rows: usize,
    /// The dimension of the features: the number of values per row.
    pub dim: usize,
    /// The name of the backbone that computed the features, if the file contains it.
    pub backbone: Option<String>,
    /// Whether every row has the name of its item, such as the path of its image.
    pub has_items: bool,
    /// The hash that identifies features, labels and class names in results; `None` if a value is not finite or is too
    /// large.
    pub fingerprint: Option<Fingerprint>,
    /// Every class with its number of rows, in the order of [`Embeddings::classes`](super::Embeddings::classes).
    pub classes: Vec<ClassCount>,
    /// The class with the fewest rows; if several are equally small, the first of them. `None` without classes.
    pub smallest_class: Option<ClassCount>,
    /// The class with the most rows; if several are equally large, the first of them. `None` without classes.
    pub largest_class: Option<ClassCount>,
    /// The smallest number of images of a class, if some rows are augmented copies of an image; episodes count these
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fewest_images: Option<usize>,
    /// The largest number of shots (labelled items per class of an episode) for which every class has enough rows: its
    /// shots, 15 queries, and the same number of rows as shots for the noise pool, from which label noise takes items
    /// and puts them under the labels of other classes. `None` if not even one shot is possible.
    pub largest_shots: Option<usize>,
    /// The Euclidean norms of the rows without NaN or infinite values; `None` if there is no such row.
    pub norms: Option<Norms>,
    /// Rows that are bitwise equal to another row.
    pub duplicates: Duplicates,
    /// Values that are NaN or infinite.
    pub non_finite: NonFinite,
    /// The number of dimensions in which all rows have the same value.
    pub constant_dimensions: usize,
    /// One sentence for each problem that was found, the most serious first.
    pub warnings: Vec<String>,
}

/// A class and its number of rows.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct ClassCount {
    pub name: String,
    pub count: usize,
}

/// The smallest, median and largest Euclidean norm of the rows without NaN or infinite values. Of an even number of
/// rows, the median is the larger of the two middle norms.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Norms {
    pub min: f32,
    pub median: f32,
    pub max: f32,
    /// The number of rows that are all zero.
    pub zero: usize,
}

/// Rows that are bitwise equal. All rows that equal each other form one group.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Duplicates {
    /// The number of rows that repeat an earlier row.
    pub rows: usize,
    /// The number of groups of two or more equal rows.
    pub groups: usize,
    /// The number of groups whose rows have different labels: at least one of these labels is wrong.
    pub across_classes: usize,
    /// The row numbers, from 0, of the first five rows of each of the first five groups.
    pub examples: Vec<Vec<usize>>,
}

/// Values that are NaN or infinite.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NonFinite {
    /// The number of values that are NaN or infinite.
    pub count: usize,
    /// The first of them in the order of the rows, then of the columns; `None` if there are none.
    pub first: Option<ValueLocation>,
}

/// A value that is NaN or infinite, and its position in the feature matrix.
#[derive(Debug, Clone, Serialize)]
pub struct ValueLocation {
    /// The row, counted from 0.
    pub row: usize,
    /// The column, counted from 0.
    pub column: usize,
    /// `NaN`, `inf` or `-inf`, as text, because JSON has no numbers for them.
    pub value: String,
}
