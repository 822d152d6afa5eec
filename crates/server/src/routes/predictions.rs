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

/// What to answer.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PredictOptions {
    /// Whether to give the probability of every class.
    #[serde(default)]
    probabilities: bool,
}

/// Answers, one for every row or picture.
#[derive(Serialize, ToSchema)]
pub struct Predictions {
    /// The classifier that was asked.
    classifier: String,
    /// Its classes, in the order of probabilities.
    classes: Vec<String>,
    /// The answers.
    predictions: Vec<PredictionEntry>,
}

/// An answer.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Answer)]
pub enum PredictionEntry {
    /// What it is.
    Predicted {
        /// What was asked about.
        item: String,
        /// The most probable class.
        class: String,
        /// How probable it is, if it is one of the classes at all.
        probability: f32,
        /// How strange it is: 0 is like the items of its class, 1 like nothing that was seen.
        unknown: f32,
        /// The probability of every class.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        probabilities: Option<Vec<f32>>,
    },
    /// Why nothing can be said.
    Unreadable {
        /// What was asked about.
        item: String,
        /// Why it cannot be read.
        error: String,
    },
}

/// Says which class rows or pictures are of.
#[utoipa::path(post, operation_id = "predict", path = "/api/v1/classifiers/{id}/predict", tag = "classifiers",
    params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$"), PredictOptions),
    request_body(description = "rows, or pictures",
        content((QueriesBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 200, description = "an answer for every one", body = Predictions),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn post(
    State(app): State<SharedApp>,
    ClassifierId(id): ClassifierId,
    QueryParameters(options): QueryParameters<PredictOptions>,
    request: Request,
) -> Result<JsonBytes, Problem> {
    app.store.metadata(&id)?;
    let (admitted, body) = receive(&app, request).await?;
    let answered = admitted.run(move |job| {
        let predictor = app.store.predictor(&id)?;
        if matches!(body.kind, BodyKind::Form(_)) {
            check_embedder(&predictor, app.embedder.backbone().name())?;
        }
        let queries = Queries::parse(body, &app, &job.cancellation)?;
        let predictions = predict(&predictor, queries, options.probabilities)?;
        job.json_response(&Predictions { classifier: id, classes: predictor.classes().to_vec(), predictions })
    });
    Ok(JsonBytes(answered.await?))
}

/// A classifier can be asked about pictures only if we make of them what it learned from.
fn check_embedder(predictor: &Predictor, ours: &str) -> Result<(), Problem> {
    match predictor.embedder() {
        Some(theirs) if theirs == ours => Ok(()),
        Some(theirs) => {
            let error =
                format!("this classifier was made with '{theirs}', but pictures are embedded with '{ours}'");
            Err(Problem::unusable(error).hint("start the server with its --backbone, or send rows"))
        }
        None => Err(Problem::unusable("this classifier was made of rows whose embedder is not known")
            .hint("send rows, or name the 'embedder' when the classifier is made")),
    }
}

fn predict(predictor: &Predictor, queries: Queries, all: bool) -> Result<Vec<PredictionEntry>, Problem> {
    let rows: Vec<&[f32]> = queries.rows.iter().flatten().map(Vec::as_slice).collect();
    let mut predicted = predictor.predict(&rows)?.into_iter();
    let answer = |(item, row): (String, &EmbeddingResult)| match row {
        Err(error) => Ok(PredictionEntry::Unreadable { item, error: error.to_string() }),
        Ok(_) => prediction_entry(predictor, item, predicted.next().expect("an answer for every row"), all),
    };
    queries.items.into_iter().zip(&queries.rows).map(answer).collect()
}

fn prediction_entry(
    predictor: &Predictor,
    item: String,
    found: Prediction,
    all: bool,
) -> Result<PredictionEntry, Problem> {
    if !(found.probability.is_finite() && found.unknown.is_finite()) {
        return Err(Problem::unusable(format!("nothing can be said of {item}: its numbers lead to none")));
    }
    Ok(PredictionEntry::Predicted {
        item,
        class: predictor.classes()[found.class as usize].clone(),
        probability: found.probability,
        unknown: found.unknown,
        probabilities: all.then_some(found.probabilities),
    })
}
