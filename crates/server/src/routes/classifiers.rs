//! Classifiers: made, listed, fetched, deleted.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use trueshot::audit::Options;
use trueshot::method::{MethodInfo, NamedMethod};
use trueshot::predictor::Predictor;
use utoipa::{IntoParams, ToSchema};

use super::{Asked, Id, JsonBytes, audits};
use crate::body::receive;
use crate::description::{Binary, PicturesBody, SupportBody};
use crate::limits::{MOST_FITTED_ITEMS, MOST_FITTED_PAIRS, MOST_FITTED_WEIGHTS};
use crate::problem::{Problem, ProblemBody};
use crate::state::{App, Shared};
use crate::store::Metadata;
use crate::support::{Skipped, Support};

/// How to learn.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FitOptions {
    /// The method, relabel if nothing is said; GET /api/v1 lists them.
    method: Option<String>,
}

/// A classifier that was made.
#[derive(Serialize, ToSchema)]
pub struct Made {
    #[serde(flatten)]
    metadata: Metadata,
    /// Pictures that could not be read.
    skipped: Vec<Skipped>,
}

/// Learns a classifier and keeps it. The same support set makes the same classifier, with the same id.
#[utoipa::path(post, operation_id = "makeClassifier", path = "/api/v1/classifiers", tag = "classifiers", params(FitOptions),
    request_body(description = "labelled rows, or pictures in fields named by their class",
        content((SupportBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 201, description = "it is kept", body = Made, headers(("location" = String, description = "its path"))),
        (status = 409, description = "too many are kept", body = ProblemBody)))]
pub async fn post(
    State(app): State<Shared>,
    Asked(options): Asked<FitOptions>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let method = method_of(&app, options.method.as_deref().unwrap_or("relabel"))?;
    let (ticket, body) = receive(&app, request).await?;
    let made = ticket.work(move |job| {
        let support = Support::of(body, &app, &job.watch)?;
        check_size(&support)?;
        let audit = audits::look(&support, &Options::default(), &app, &job.watch)?;
        let predictor = Predictor::fit(support.data, &method, Some(&audit))?;
        let metadata = app.store.keep(predictor)?;
        let place = format!("/api/v1/classifiers/{}", metadata.id);
        Ok((place, job.json(&Made { metadata, skipped: support.skipped })?))
    });
    let (place, made) = made.await?;
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], JsonBytes(made)))
}

/// Whether a request may ask for a method: not if it needs the truth, or a file, for no request names one.
pub fn is_usable(info: &MethodInfo) -> bool {
    info.is_complete() && info.name != "oracle"
}

/// The names of the methods that a request may ask for.
pub fn usable_methods(app: &App) -> Vec<&'static str> {
    app.registry.infos().iter().filter(|info| is_usable(info)).map(|info| info.name).collect()
}

fn method_of(app: &App, name: &str) -> Result<NamedMethod, Problem> {
    let usable = usable_methods(app);
    if !usable.contains(&name) {
        let given: String = name.chars().take(40).collect();
        let error = format!("no method '{given}' here; there are {}", usable.join(", "));
        return Err(Problem::unusable(error));
    }
    Ok(app.registry.parse(name)?)
}

/// Learning cannot be interrupted, so what it may cost is bounded before it begins.
fn check_size(support: &Support) -> Result<(), Problem> {
    let (items, classes, numbers) = (support.data.len(), support.data.classes().len(), support.data.dim());
    let fits = items <= MOST_FITTED_ITEMS
        && items * classes <= MOST_FITTED_PAIRS
        && classes * numbers <= MOST_FITTED_WEIGHTS;
    if fits {
        return Ok(());
    }
    let error =
        format!("{items} rows of {numbers} numbers in {classes} classes are too much to learn from at once");
    Err(Problem::too_large(error).hint(format!(
        "at most {MOST_FITTED_ITEMS} rows, rows times classes at most {MOST_FITTED_PAIRS}, classes times numbers at most \
         {MOST_FITTED_WEIGHTS}"
    )))
}

/// Lists all classifiers.
#[utoipa::path(get, operation_id = "listClassifiers", path = "/api/v1/classifiers", tag = "classifiers",
    responses((status = 200, description = "all classifiers", body = Vec<Metadata>)))]
pub async fn list(State(app): State<Shared>) -> Json<Vec<Metadata>> {
    Json(app.store.list())
}

/// Says what a classifier is.
#[utoipa::path(get, operation_id = "getClassifier", path = "/api/v1/classifiers/{id}", tag = "classifiers", params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "what it is", body = Metadata),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn get(State(app): State<Shared>, Id(id): Id) -> Result<Json<Metadata>, Problem> {
    app.store.metadata(&id).map(Json)
}

/// The file of a classifier, which `trueshot predict` takes.
#[utoipa::path(get, operation_id = "downloadClassifier", path = "/api/v1/classifiers/{id}/download", tag = "classifiers", params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "its file", content_type = "application/octet-stream", body = Binary),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn download(State(app): State<Shared>, Id(id): Id) -> Result<impl IntoResponse, Problem> {
    let metadata = app.store.metadata(&id)?;
    let mut ticket = app.gate.enter(None)?;
    ticket.hold(app.limits.body.min(metadata.bytes as usize)).await?;
    let name = format!("attachment; filename=\"{}.safetensors\"", metadata.id);
    let bytes = ticket.work(move |job| job.answer(app.store.bytes(&id)?)).await?;
    let headers: [(HeaderName, String); 2] =
        [(header::CONTENT_TYPE, "application/octet-stream".into()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, bytes))
}

/// Deletes a classifier.
#[utoipa::path(delete, operation_id = "deleteClassifier", path = "/api/v1/classifiers/{id}", tag = "classifiers", params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn delete(State(app): State<Shared>, Id(id): Id) -> Result<StatusCode, Problem> {
    app.store.metadata(&id)?;
    let ticket = app.gate.enter(None)?;
    ticket.work(move |_| app.store.delete(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
