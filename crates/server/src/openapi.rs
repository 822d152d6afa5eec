//! The OpenAPI 3.1 description of the API.
//!
//! Types that are only sent, or that the library owns, are described by the ones here; a test reads real answers into
//! them, so that the description cannot drift away.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};
use trueshot::audit::Verdict;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type,
};
use utoipa::{OpenApi, PartialSchema, ToSchema};

use crate::limits::{MAX_DIM, MAX_ITEMS, MAX_NAME_BYTES};
use crate::request_rows::SkippedItem;
use crate::routes::{about, audits, classifiers, embeddings, predictions};
use crate::shared_responses::SharedResponses;

/// A support set as JSON.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Support)]
#[allow(dead_code)]
pub struct SupportBody {
    /// A row of numbers for every item, all of the same length.
    #[schema(schema_with = support_rows_schema, example = json!([[0.9, 0.1], [1.0, 0.2], [0.1, 0.8], [0.2, 1.0]]))]
    rows: Vec<Vec<f32>>,
    /// The class of every item, at least two different ones.
    #[schema(schema_with = labels_schema, example = json!(["cat", "cat", "dog", "dog"]))]
    labels: Vec<String>,
    /// The names of the items.
    #[schema(schema_with = names_schema, required = false)]
    items: Option<Vec<String>>,
    /// Whether the label of an item has been confirmed; such items stay where they are.
    #[schema(required = false, max_items = 20000)]
    confirmed: Option<Vec<bool>>,
    /// What made the rows.
    #[schema(required = false, max_length = 512)]
    embedder: Option<String>,
}

/// Rows whose class is asked for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Queries)]
#[allow(dead_code)]
pub struct QueriesBody {
    /// A row of numbers for every query, as many as the classifier has.
    #[schema(schema_with = query_rows_schema)]
    rows: Vec<Vec<f32>>,
    /// The names of the queries.
    #[schema(schema_with = names_schema, required = false)]
    items: Option<Vec<String>>,
}

fn support_rows_schema() -> Schema {
    rows_schema(2)
}

fn query_rows_schema() -> Schema {
    rows_schema(1)
}

fn rows_schema(least: usize) -> Schema {
    let number = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(-1e15)).maximum(Some(1e15));
    let row = ArrayBuilder::new().items(number).min_items(Some(1)).max_items(Some(MAX_DIM));
    ArrayBuilder::new().items(row).min_items(Some(least)).max_items(Some(MAX_ITEMS)).into()
}

fn labels_schema() -> Schema {
    ArrayBuilder::new().items(name_schema()).min_items(Some(2)).max_items(Some(MAX_ITEMS)).into()
}

fn names_schema() -> Schema {
    ArrayBuilder::new().items(name_schema()).max_items(Some(MAX_ITEMS)).into()
}

/// A name is text or a whole number.
fn name_schema() -> OneOfBuilder {
    let text = ObjectBuilder::new().schema_type(Type::String).max_length(Some(MAX_NAME_BYTES));
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)));
    OneOfBuilder::new().item(text).item(number)
}

/// Bytes that JSON Schema does not describe.
pub struct Binary;

impl ToSchema for Binary {}

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        let binary = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(binary)).into()
    }
}

/// Pictures as a form: the name of a field is the class of its pictures. In a field `images`, the class is the folder in
/// the file's name.
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
                "The name of a field is the class of its pictures. In a field `images`, the class is the folder in the \
                 file's name.",
            ))
            .additional_properties(Some(files))
            .min_properties(Some(1))
            .into()
    }
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
    skipped: Vec<SkippedItem>,
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
    ),
    components(schemas(crate::problem::ProblemBody)),
    modifiers(&SharedResponses)
)]
struct ApiDescription;

/// The description as it is served. What depends on the program at run time, and what utoipa cannot write, is added here.
pub fn document(methods: &[&str]) -> Value {
    let mut document =
        serde_json::to_value(ApiDescription::openapi()).expect("the description is plain data");
    let classifiers = &mut document["paths"]["/api/v1/classifiers"];
    classifiers["post"]["parameters"][0]["schema"] = json!({ "type": "string", "enum": methods });
    classifiers["post"]["responses"]["201"]["links"] = links();
    document
}

/// The operations that the id of a new classifier is for. (utoipa writes the names of the fields of a link wrongly.)
fn links() -> Value {
    let operations = ["getClassifier", "downloadClassifier", "predict", "deleteClassifier"];
    let id = "$response.body#/id";
    let link = |operation: &str| {
        (operation.to_owned(), json!({ "operationId": operation, "parameters": { "id": id } }))
    };
    operations.map(link).into_iter().collect()
}
