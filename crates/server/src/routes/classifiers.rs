//! The operations on classifiers: create, list, get, download and delete.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use trueshot::audit::Options;
use trueshot::method::{MethodInfo, NamedMethod};
use trueshot::predictor::Predictor;
use trueshot_vision::LabelledRows;
use utoipa::{IntoParams, ToSchema};

use super::{ClassifierId, JsonBytes, QueryParameters, audits};
use crate::body::receive;
use crate::limits::{MAX_FITTED_ITEMS, MAX_FITTED_PAIRS, MAX_FITTED_WEIGHTS};
use crate::openapi::{Binary, PicturesBody, SupportBody};
use crate::problem::{Problem, ProblemBody};
use crate::request_rows::{SkippedItem, parse_labelled_rows};
use crate::state::{App, SharedApp};
use crate::store::ClassifierMetadata;

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
#[schema(as = Made)]
pub struct CreatedClassifier {
    #[serde(flatten)]
    metadata: ClassifierMetadata,
    /// Pictures that could not be read.
    skipped: Vec<SkippedItem>,
}

/// Learns a classifier and keeps it. The same support set makes the same classifier, with the same id.
#[utoipa::path(post, operation_id = "makeClassifier", path = "/api/v1/classifiers", tag = "classifiers", params(FitOptions),
    request_body(description = "labelled rows, or pictures in fields named by their class",
        content((SupportBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 201, description = "it is kept", body = CreatedClassifier, headers(("location" = String, description = "its path"))),
        (status = 409, description = "too many are kept", body = ProblemBody)))]
pub async fn post(
    State(app): State<SharedApp>,
    QueryParameters(options): QueryParameters<FitOptions>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let method = parse_method(&app, options.method.as_deref().unwrap_or("relabel"))?;
    let (admitted, body) = receive(&app, request).await?;
    let made = admitted.run(move |job| {
        let support = parse_labelled_rows(body, &app, &job.cancellation)?;
        check_fit_size(&support)?;
        let audit = audits::audit_rows(&support, &Options::default(), &app, &job.cancellation)?;
        let predictor = Predictor::fit(support.embeddings, &method, Some(&audit))?;
        let metadata = app.store.save(predictor)?;
        let place = format!("/api/v1/classifiers/{}", metadata.id);
        let skipped = support.skipped.into_iter().map(Into::into).collect();
        Ok((place, job.json_response(&CreatedClassifier { metadata, skipped })?))
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

fn parse_method(app: &App, name: &str) -> Result<NamedMethod, Problem> {
    let usable = usable_methods(app);
    if !usable.contains(&name) {
        let given: String = name.chars().take(40).collect();
        let error = format!("no method '{given}' here; there are {}", usable.join(", "));
        return Err(Problem::unusable(error));
    }
    Ok(app.registry.parse(name)?)
}

/// Learning cannot be interrupted, so what it may cost is bounded before it begins.
fn check_fit_size(support: &LabelledRows) -> Result<(), Problem> {
    let (items, classes, numbers) =
        (support.embeddings.len(), support.embeddings.classes().len(), support.embeddings.dim());
    let fits = items <= MAX_FITTED_ITEMS
        && items * classes <= MAX_FITTED_PAIRS
        && classes * numbers <= MAX_FITTED_WEIGHTS;
    if fits {
        return Ok(());
    }
    let error =
        format!("{items} rows of {numbers} numbers in {classes} classes are too much to learn from at once");
    Err(Problem::too_large(error).hint(format!(
        "at most {MAX_FITTED_ITEMS} rows, rows times classes at most {MAX_FITTED_PAIRS}, classes times numbers at most \
         {MAX_FITTED_WEIGHTS}"
    )))
}

/// Lists all classifiers.
#[utoipa::path(get, operation_id = "listClassifiers", path = "/api/v1/classifiers", tag = "classifiers",
    responses((status = 200, description = "all classifiers", body = Vec<ClassifierMetadata>)))]
pub async fn list(State(app): State<SharedApp>) -> Json<Vec<ClassifierMetadata>> {
    Json(app.store.list())
}

/// Says what a classifier is.
#[utoipa::path(get, operation_id = "getClassifier", path = "/api/v1/classifiers/{id}", tag = "classifiers", params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "what it is", body = ClassifierMetadata),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn get(
    State(app): State<SharedApp>,
    ClassifierId(id): ClassifierId,
) -> Result<Json<ClassifierMetadata>, Problem> {
    app.store.metadata(&id).map(Json)
}

/// The file of a classifier, which `trueshot predict` takes.
#[utoipa::path(get, operation_id = "downloadClassifier", path = "/api/v1/classifiers/{id}/download", tag = "classifiers", params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "its file", content_type = "application/octet-stream", body = Binary),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn download(
    State(app): State<SharedApp>,
    ClassifierId(id): ClassifierId,
) -> Result<impl IntoResponse, Problem> {
    let metadata = app.store.metadata(&id)?;
    let mut admitted = app.admission.admit(None)?;
    admitted.reserve_memory(app.limits.body.min(metadata.bytes as usize)).await?;
    let name = format!("attachment; filename=\"{}.safetensors\"", metadata.id);
    let bytes = admitted.run(move |job| job.response(app.store.bytes(&id)?)).await?;
    let headers: [(HeaderName, String); 2] =
        [(header::CONTENT_TYPE, "application/octet-stream".into()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, bytes))
}

/// Deletes a classifier.
#[utoipa::path(delete, operation_id = "deleteClassifier", path = "/api/v1/classifiers/{id}", tag = "classifiers", params(("id" = String, Path, description = "its id", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn delete(
    State(app): State<SharedApp>,
    ClassifierId(id): ClassifierId,
) -> Result<StatusCode, Problem> {
    app.store.metadata(&id)?;
    let admitted = app.admission.admit(None)?;
    admitted.run(move |_| app.store.delete(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
