//! The OpenAPI 3.1 description of the API. Start with [`document`], which `/openapi.json` serves. The doc comments of
//! the types here and of the handlers in `routes` are the texts of the description.
//!
//! Request bodies in JSON are parsed by the types of `json_rows`; [`SupportBody`] and [`QueriesBody`] only describe
//! them, and a test compares their fields. The response to an audit is serialized from types of `core`, which have no
//! schema; [`AuditBody`] and the types of its fields describe it. A test in `routes/audits.rs` deserializes a response
//! into [`AuditBody`], which refuses fields that it does not have.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};
use trueshot::audit::{Action, Verdict};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::{OpenApi, PartialSchema, ToSchema};

use crate::json_rows::IMAGE_TEXT_LEN;
use crate::limits::{MAX_DIM, MAX_ITEMS, MAX_NAME_BYTES};
use crate::request_rows::SkippedItem;
use crate::routes::{about, audits, classifiers, embeddings, predictions};
use crate::shared_responses::SharedResponses;

/// A support set as JSON.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Support)]
#[allow(dead_code)]
// The attributes `max_items` and `max_length` take literals only: 20000 is MAX_ITEMS, and 512 is MAX_NAME_BYTES.
pub struct SupportBody {
    /// One row of numbers (an embedding) per item, all of the same length.
    #[schema(schema_with = support_rows_schema, example = json!([[0.9, 0.1], [1.0, 0.2], [0.1, 0.8], [0.2, 1.0]]))]
    rows: Vec<Vec<f32>>,
    /// The label of every item, as text or an integer; at least two different labels.
    #[schema(schema_with = labels_schema, example = json!(["cat", "cat", "dog", "dog"]))]
    labels: Vec<String>,
    /// The names of the items.
    #[schema(schema_with = names_schema, required = false)]
    items: Option<Vec<String>>,
    /// Whether the label of an item is known to be right; such items are never suggested for relabelling.
    #[schema(required = false, max_items = 20000)]
    confirmed: Option<Vec<bool>>,
    /// The name of the network that computed the rows.
    #[schema(required = false, max_length = 512)]
    embedder: Option<String>,
    /// The measures of the images behind the rows, as `/api/v1/embed` returned them in `image`; null for a row without an
    /// image. They show which images are copies of each other, and which are too poor to be used.
    #[schema(schema_with = images_schema, required = false)]
    images: Option<Vec<Option<String>>>,
}

/// Query rows as JSON.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Queries)]
#[allow(dead_code)]
pub struct QueriesBody {
    /// One row of numbers (an embedding) per query, with the dimension of the classifier.
    #[schema(schema_with = query_rows_schema)]
    rows: Vec<Vec<f32>>,
    /// The names of the queries.
    #[schema(schema_with = names_schema, required = false)]
    items: Option<Vec<String>>,
}

// A support set has at least two rows, queries at least one.
fn support_rows_schema() -> Schema {
    rows_schema(2)
}

fn query_rows_schema() -> Schema {
    rows_schema(1)
}

/// The schema of at least `least` rows of numbers. Numbers beyond 1e15, whose squares could add up to infinity, are
/// refused when rows are checked.
fn rows_schema(least: usize) -> Schema {
    let number = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(-1e15)).maximum(Some(1e15));
    let row = ArrayBuilder::new().items(number).min_items(Some(1)).max_items(Some(MAX_DIM));
    ArrayBuilder::new().items(row).min_items(Some(least)).max_items(Some(MAX_ITEMS)).into()
}

// At least two labels, because a support set has at least two classes.
fn labels_schema() -> Schema {
    ArrayBuilder::new().items(name_schema()).min_items(Some(2)).max_items(Some(MAX_ITEMS)).into()
}

fn names_schema() -> Schema {
    ArrayBuilder::new().items(name_schema()).max_items(Some(MAX_ITEMS)).into()
}

fn images_schema() -> Schema {
    let text = ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(IMAGE_TEXT_LEN));
    ArrayBuilder::new().items(text).max_items(Some(MAX_ITEMS)).into()
}

/// The schema of a name: text or an integer.
fn name_schema() -> OneOfBuilder {
    let text = ObjectBuilder::new().schema_type(Type::String).max_length(Some(MAX_NAME_BYTES));
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)));
    OneOfBuilder::new().item(text).item(number)
}

/// The schema of binary data.
pub struct Binary;

impl ToSchema for Binary {}

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        let binary = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(binary)).into()
    }
}

/// Images as a form: the name of a field is the class of its images. In a field `images`, the class is the folder in the
/// file name.
pub struct PicturesBody;

impl ToSchema for PicturesBody {
    fn name() -> Cow<'static, str> {
        "Pictures".into()
    }
}

impl PartialSchema for PicturesBody {
    fn schema() -> RefOr<Schema> {
        let files: Schema = ArrayBuilder::new().items(Binary::schema()).into();
        ObjectBuilder::new()
            .description(Some(
                "The name of a field is the class of its images. In a field `images`, the class is the folder in the \
                 file name (`cat/1.jpg`).",
            ))
            .additional_properties(Some(files))
            .min_properties(Some(1))
            .into()
    }
}

/// The result of an audit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Audit)]
#[allow(dead_code)]
pub struct AuditBody {
    /// The method that judged the labels.
    method: String,
    /// All items, in the order of the request, without the images that were skipped.
    items: Vec<AuditedItem>,
    /// All classes.
    classes: Vec<AuditedClass>,
    /// Expected number of wrong labels: the sum of `p_wrong` over all items.
    expected_wrong: f64,
    /// Numbers of items, classes, items per action, confirmed and suspect labels.
    counts: AuditCounts,
    /// Pairs of identical or nearly identical items, those with different labels first.
    duplicates: Vec<Duplicate>,
    /// Images that are blurred, dark, blank, tiny or unreadable; empty for rows without `images`.
    image_problems: Vec<ImageProblem>,
    /// Problems of whole classes.
    warnings: Vec<String>,
    /// The name of the network that computed the rows, if known.
    embedder: Option<String>,
    /// Images that could not be read.
    skipped: Vec<SkippedItem>,
}

/// The counts of an audit: relabel + quarantine + review + keep = items.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct AuditCounts {
    /// Audited items.
    items: usize,
    /// Classes with at least one item.
    classes: usize,
    /// Items to relabel.
    relabel: usize,
    /// Items to quarantine.
    quarantine: usize,
    /// Items to review.
    review: usize,
    /// Items that keep their label, confirmed ones included.
    keep: usize,
    /// Items whose label was confirmed in the request.
    confirmed: usize,
    /// Suspect labels: more likely wrong than right, whatever the action.
    suspect: usize,
}

/// The verdict on one item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct AuditedItem {
    /// The name of the item.
    item: String,
    /// The label of the item in the request.
    given: String,
    /// The probability that the label is wrong.
    p_wrong: f32,
    /// The verdict: keep, relabel, outlier (none of these classes), wrong (which class is right is uncertain) or unsure.
    #[schema(value_type = String)]
    verdict: Verdict,
    /// What a repair does with the item: keep, relabel, quarantine, or review (a person decides).
    #[schema(value_type = String)]
    action: Action,
    /// The suggested label, if the verdict is relabel.
    suggested: Option<String>,
    /// The weight of the item in its class; the average item has weight 1.
    weight: f32,
    /// The probability that the item belongs to none of the classes.
    p_outlier: f32,
    /// The three most probable classes, the most probable first.
    probable: Vec<ProbableClass>,
    /// What would help to decide, if the verdict is unsure.
    #[schema(required = false, nullable = false)]
    #[serde(default)]
    advice: Option<String>,
    /// Whether the label was confirmed in the request.
    #[serde(default)]
    #[schema(required = false)]
    confirmed: bool,
    /// The most similar items, the most similar first.
    neighbours: Vec<Neighbour>,
}

/// A class that an item may belong to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct ProbableClass {
    /// The class; null for none of the classes.
    class: Option<String>,
    /// The probability that the item belongs to it.
    p: f32,
}

/// An item that is similar to an audited one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct Neighbour {
    /// The name of the similar item.
    item: String,
    /// The label of the similar item in the request.
    given: String,
    /// The cosine similarity of the two rows.
    similarity: f32,
}

/// Counts of one class.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct AuditedClass {
    /// The name of the class.
    class: String,
    /// Number of items with this label.
    items: usize,
    /// Expected number of wrong labels among them: the sum of their `p_wrong`.
    expected_wrong: f64,
    /// Number of items of other classes for which this class is suggested.
    found_elsewhere: usize,
}

/// Two identical or nearly identical items.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct Duplicate {
    /// The kind of match: exact or near.
    kind: String,
    /// The name of the first item.
    item: String,
    /// The label of the first item.
    given: String,
    /// The name of the second item.
    other: String,
    /// The label of the second item.
    other_given: String,
    /// Whether the labels differ, so that at least one of them is wrong.
    label_conflict: bool,
}

/// An image that is too poor to be used, or cannot be read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub struct ImageProblem {
    /// The name of the item.
    item: String,
    /// The label of the item, if it has one.
    given: Option<String>,
    /// What is wrong with the image: blurred, dark, blank, tiny, unreadable.
    kinds: Vec<String>,
}

/// The OpenAPI document as utoipa derives it.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "trueshot",
        description = "Few-shot learning with wrong labels: audits a small labelled set, and fits classifiers that tolerate wrong labels."
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
    ),
    components(schemas(crate::problem::ProblemBody)),
    modifiers(&SharedResponses)
)]
struct ApiDescription;

/// The description as it is served, with the parts that are known only at run time or that utoipa cannot express.
pub fn document(methods: &[&str]) -> Value {
    let mut document =
        serde_json::to_value(ApiDescription::openapi()).expect("the description is plain data");
    let classifiers = &mut document["paths"]["/api/v1/classifiers"];
    // The only parameter is `method`.
    classifiers["post"]["parameters"][0]["schema"] = json!({ "type": "string", "enum": methods });
    classifiers["post"]["responses"]["201"]["links"] = links();
    document
}

/// Links from a new classifier to the operations that take its id. (utoipa misspells the field names of links.)
fn links() -> Value {
    let operations = ["getClassifier", "downloadClassifier", "predict", "deleteClassifier"];
    let id = "$response.body#/id";
    let link = |operation: &str| {
        (operation.to_owned(), json!({ "operationId": operation, "parameters": { "id": id } }))
    };
    operations.map(link).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::json_rows::{QueriesJson, SupportJson};

    /// The error about an unknown field, which lists the known ones.
    fn known_fields<Body: DeserializeOwned>() -> String {
        serde_json::from_str::<Body>(r#"{"unknown": 0}"#).err().expect("an error").to_string()
    }

    #[test]
    fn request_bodies_are_described_with_the_fields_that_are_parsed() {
        assert!(known_fields::<SupportBody>().contains("`confirmed`"));
        assert_eq!(known_fields::<SupportBody>(), known_fields::<SupportJson>());
        assert_eq!(known_fields::<QueriesBody>(), known_fields::<QueriesJson>());
    }
}
