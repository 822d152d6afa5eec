//! The operation that classifies rows or images with a stored classifier.

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use trueshot::predictor::{Prediction, Predictor};
use trueshot_vision::embedder::EmbeddingResult;
use utoipa::{IntoParams, ToSchema};

use super::{ClassifierId, JsonBytes, QueryParameters};
use crate::body::{BodyKind, receive};
use crate::openapi::{Binary, PicturesBody, QueriesBody};
use crate::problem::{Problem, ProblemBody};
use crate::request_rows::Queries;
use crate::state::SharedApp;

/// Options of a prediction.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PredictOptions {
    /// Whether to return the probabilities of all classes.
    #[serde(default)]
    probabilities: bool,
}

/// The predictions of a classifier.
#[derive(Serialize, ToSchema)]
pub struct Predictions {
    /// The id of the classifier.
    classifier: String,
    /// The classes of the classifier, in the order of `probabilities`.
    classes: Vec<String>,
    /// One prediction per row or image, in the order of the request.
    predictions: Vec<PredictionEntry>,
}

/// A prediction, or why the image cannot be read.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Answer)]
pub enum PredictionEntry {
    /// The prediction for a row or image.
    Predicted {
        /// The name of the query.
        item: String,
        /// The most probable class, also if the query more probably belongs to none of the classes.
        class: String,
        /// The probability of that class.
        probability: f32,
        /// The probability that the query belongs to none of the classes.
        unknown: f32,
        /// The probabilities of all classes; with `unknown` they sum to 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        probabilities: Option<Vec<f32>>,
    },
    /// An image that cannot be read.
    Unreadable {
        /// The name of the query.
        item: String,
        /// Why the image cannot be read.
        error: String,
    },
}

/// Predicts the classes of rows or images.
#[utoipa::path(post, operation_id = "predict", path = "/api/v1/classifiers/{id}/predict", tag = "classifiers",
    params(("id" = String, Path, description = "id of the classifier", pattern = "^[0-9a-f]{32}$"), PredictOptions),
    request_body(description = "rows or images",
        content((QueriesBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 200, description = "one prediction per row or image", body = Predictions),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn post(
    State(app): State<SharedApp>,
    ClassifierId(id): ClassifierId,
    QueryParameters(options): QueryParameters<PredictOptions>,
    request: Request,
) -> Result<JsonBytes, Problem> {
    app.store.metadata(&id)?;
    let (admitted, body) = receive(&app, request).await?;
    let response = admitted.run(move |job| {
        let predictor = app.store.predictor(&id)?;
        if matches!(body.kind, BodyKind::Form(_)) {
            check_embedder(&predictor, app.embedder.backbone().name())?;
        }
        let queries = Queries::parse(body, &app, &job.cancellation)?;
        let predictions = predict(&predictor, queries, options.probabilities)?;
        job.json_response(&Predictions { classifier: id, classes: predictor.classes().to_vec(), predictions })
    });
    Ok(JsonBytes(response.await?))
}

/// Fails if the classifier cannot predict images: the network of its support set must be that of the server, `ours`.
fn check_embedder(predictor: &Predictor, ours: &str) -> Result<(), Problem> {
    match predictor.embedder() {
        Some(theirs) if theirs == ours => Ok(()),
        Some(theirs) => {
            let error = format!(
                "this classifier was fitted on rows of '{theirs}', but images are embedded by '{ours}'"
            );
            Err(Problem::unusable(error).hint("start the server with that --backbone, or send rows"))
        }
        None => Err(Problem::unusable("this classifier was fitted on rows whose embedder is not known")
            .hint("send rows, or give the 'embedder' when fitting the classifier")),
    }
}

/// Predicts the classes of the queries, in their order. Images that cannot be read have no row and keep their reason.
fn predict(
    predictor: &Predictor,
    queries: Queries,
    with_probabilities: bool,
) -> Result<Vec<PredictionEntry>, Problem> {
    let rows: Vec<&[f32]> = queries.rows.iter().flatten().map(Vec::as_slice).collect();
    let mut predicted = predictor.predict(&rows)?.into_iter();
    let entry = |(item, row): (String, &EmbeddingResult)| match row {
        Err(error) => Ok(PredictionEntry::Unreadable { item, error: error.to_string() }),
        Ok(_) => {
            let prediction = predicted.next().expect("one prediction per row");
            prediction_entry(predictor, item, prediction, with_probabilities)
        }
    };
    queries.items.into_iter().zip(&queries.rows).map(entry).collect()
}

/// The entry of the response for one prediction.
fn prediction_entry(
    predictor: &Predictor,
    item: String,
    prediction: Prediction,
    with_probabilities: bool,
) -> Result<PredictionEntry, Problem> {
    if !(prediction.probability.is_finite() && prediction.unknown.is_finite()) {
        return Err(Problem::unusable(format!(
            "the prediction for {item} failed: its scores are not finite; try rows with smaller values"
        )));
    }
    Ok(PredictionEntry::Predicted {
        item,
        class: predictor.classes()[prediction.class as usize].clone(),
        probability: prediction.probability,
        unknown: prediction.unknown,
        probabilities: with_probabilities.then_some(prediction.probabilities),
    })
}
