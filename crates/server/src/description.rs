//! The API described for programs (OpenAPI 3.1).
//!
//! Types that are only sent, or that the library owns, are described by the ones here; a test reads real answers into
//! them, so that the description cannot drift away.

use serde::Deserialize;
use trueshot::audit::Verdict;
use utoipa::{OpenApi, ToSchema};

use crate::routes::{about, audits, classifiers, embeddings, predictions};
use crate::support::Skipped;

/// A support set as JSON.
#[derive(ToSchema)]
#[schema(as = Support)]
#[allow(dead_code)]
pub struct SupportBody {
    /// A row of numbers for every item, all of the same length.
    #[schema(min_items = 2, max_items = 20000, example = json!([[0.9, 0.1], [1.0, 0.2], [0.1, 0.8], [0.2, 1.0]]))]
    rows: Vec<Vec<f32>>,
    /// The class of every item.
    #[schema(min_items = 2, max_items = 20000, example = json!(["cat", "cat", "dog", "dog"]))]
    labels: Vec<String>,
    /// What the items are called.
    #[schema(required = false, nullable = false, max_items = 20000)]
    items: Option<Vec<String>>,
    /// Whether somebody has confirmed a label; such items stay where they are.
    #[schema(required = false, nullable = false, max_items = 20000)]
    confirmed: Option<Vec<bool>>,
    /// What made the rows.
    #[schema(required = false, nullable = false, max_length = 512)]
    embedder: Option<String>,
}

/// Rows that ask for their class.
#[derive(ToSchema)]
#[schema(as = Queries)]
#[allow(dead_code)]
pub struct QueriesBody {
    /// A row of numbers for every question.
    #[schema(min_items = 1, max_items = 20000)]
    rows: Vec<Vec<f32>>,
    /// What they are called.
    #[schema(required = false, nullable = false, max_items = 20000)]
    items: Option<Vec<String>>,
}

/// Pictures as a form: the name of a field is the class of its pictures. In a field `images`, the class is the folder in
/// the file's name.
#[derive(ToSchema)]
#[schema(as = Pictures)]
#[allow(dead_code)]
pub struct PicturesBody {
    /// Pictures named CLASS/FILE.
    #[schema(format = Binary)]
    images: Vec<String>,
}

/// What was found.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Audit)]
#[allow(dead_code)]
pub struct AuditBody {
    /// What judged.
    method: String,
    /// Every item, in the order of the request; without the pictures that were skipped.
    items: Vec<AuditedItem>,
    /// Every class.
    classes: Vec<AuditedClass>,
    /// How many labels are wrong, by the sum of their probabilities.
    expected_wrong: f64,
    /// Items that are there twice.
    duplicates: Vec<Duplicate>,
    /// What is odd about whole classes.
    warnings: Vec<String>,
    /// What made the rows, if that is known.
    embedder: Option<String>,
    /// Pictures that could not be read.
    skipped: Vec<Skipped>,
}

/// One item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct AuditedItem {
    /// Its name.
    item: String,
    /// The class it is filed under.
    given: String,
    /// The probability that this is wrong.
    p_wrong: f32,
    /// What to do with it: keep, relabel, outlier or unsure.
    #[schema(value_type = String)]
    verdict: Verdict,
    /// Where it belongs, if that is clear and elsewhere.
    suggested: Option<String>,
    /// How much it counts in its class, 1 being an ordinary item.
    weight: f32,
    /// The probability that it belongs to no class.
    p_outlier: f32,
    /// What would settle it, if it is not clear.
    #[schema(required = false, nullable = false)]
    #[serde(default)]
    advice: Option<String>,
    /// Whether somebody has confirmed its label.
    #[serde(default)]
    #[schema(required = false)]
    confirmed: bool,
    /// The items most like it, the most like first.
    neighbours: Vec<Neighbour>,
}

/// An item like another.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct Neighbour {
    /// Its name.
    item: String,
    /// The class it is filed under.
    given: String,
    /// The cosine of the two.
    similarity: f32,
}

/// One class.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct AuditedClass {
    /// Its name.
    class: String,
    /// Items filed under it.
    items: usize,
    /// How many of them are wrong, by the sum of their probabilities.
    expected_wrong: f64,
    /// Items of other classes that belong to it.
    found_elsewhere: usize,
}

/// Two items that are the same.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct Duplicate {
    /// How much the same: exact or near.
    kind: String,
    /// One.
    item: String,
    /// The class it is filed under.
    given: String,
    /// The other.
    other: String,
    /// The class that one is filed under.
    other_given: String,
}

/// The whole description.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "trueshot",
        description = "Few labelled examples, some of them wrong: finds the wrong ones, and learns a classifier that does not mind them."
    ),
    paths(
        about::about,
        about::healthz,
        crate::metrics::metrics,
        audits::post,
        embeddings::post,
        classifiers::post,
        classifiers::list,
        classifiers::get,
        classifiers::download,
        classifiers::delete,
        predictions::post
    )
)]
pub struct Description;
