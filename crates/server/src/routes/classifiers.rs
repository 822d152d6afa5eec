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

/// Options for fitting a classifier.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FitOptions {
    /// The method, by default relabel; GET /api/v1 lists all of them.
    method: Option<String>,
}

/// A new classifier.
#[derive(Serialize, ToSchema)]
#[schema(as = Made)]
pub struct CreatedClassifier {
    #[serde(flatten)]
    metadata: ClassifierMetadata,
    /// Images that could not be read.
    skipped: Vec<SkippedItem>,
}

/// Fits a classifier and stores it. The same support set and method give the same classifier, with the same id.
#[utoipa::path(post, operation_id = "makeClassifier", path = "/api/v1/classifiers", tag = "classifiers", params(FitOptions),
    request_body(description = "labelled rows, or images in fields named by their class",
        content((SupportBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 201, description = "the classifier is stored", body = CreatedClassifier, headers(("location" = String, description = "path of the classifier"))),
        (status = 409, description = "too many classifiers are stored", body = ProblemBody)))]
pub async fn post(
    State(app): State<SharedApp>,
    QueryParameters(options): QueryParameters<FitOptions>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let method = parse_method(&app, options.method.as_deref().unwrap_or("relabel"))?;
    let (admitted, body) = receive(&app, request).await?;
    let response = admitted.run(move |job| {
        let support = parse_labelled_rows(body, &app, &job.cancellation)?;
        check_fit_size(&support)?;
        let audit = audits::audit_rows(&support, &Options::default(), &job.cancellation)?;
        let predictor = Predictor::fit(support.embeddings, &method, Some(&audit))?;
        let metadata = app.store.save(predictor)?;
        let location = format!("/api/v1/classifiers/{}", metadata.id);
        let skipped = support.skipped.into_iter().map(Into::into).collect();
        Ok((location, job.json_response(&CreatedClassifier { metadata, skipped })?))
    });
    let (location, response) = response.await?;
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], JsonBytes(response)))
}

/// Whether a request may use a method. It may not if the method needs the true labels (`oracle`) or a file, or is
/// transductive, which means that it classifies all queries together: a stored classifier classifies single rows.
pub fn is_usable(info: &MethodInfo) -> bool {
    info.is_default() && info.name != "oracle"
}

/// The names of the methods that a request may use.
pub fn usable_methods(app: &App) -> Vec<&'static str> {
    app.registry.infos().iter().filter(|info| is_usable(info)).map(|info| info.name).collect()
}

/// The method of this name. Fails if requests may not use it.
fn parse_method(app: &App, name: &str) -> Result<NamedMethod, Problem> {
    let usable = usable_methods(app);
    if app.registry.infos().iter().any(|info| info.name == name && info.transductive) {
        let error = trueshot::Error::Transductive { method: name.into() }.to_string();
        return Err(Problem::unusable(error).hint(format!("allowed: {}", usable.join(", "))));
    }
    if !usable.contains(&name) {
        // A name in a URL can be very long.
        let short_name: String = name.chars().take(40).collect();
        let error = format!("unknown method '{short_name}'; known: {}", usable.join(", "));
        return Err(Problem::unusable(error));
    }
    Ok(app.registry.parse(name)?)
}

/// Limits the cost of fitting, which cannot be interrupted.
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
        format!("{items} rows of {numbers} numbers in {classes} classes are too many to fit a classifier on");
    Err(Problem::too_large(error).hint(format!(
        "allowed: {MAX_FITTED_ITEMS} rows, {MAX_FITTED_PAIRS} for rows times classes, and {MAX_FITTED_WEIGHTS} for \
         classes times numbers per row"
    )))
}

/// Lists all classifiers.
#[utoipa::path(get, operation_id = "listClassifiers", path = "/api/v1/classifiers", tag = "classifiers",
    responses(
        (status = 200, description = "all classifiers", body = Vec<ClassifierMetadata>),
        (status = 413, description = "the response would be too large", body = ProblemBody)))]
pub async fn list(State(app): State<SharedApp>) -> Result<JsonBytes, Problem> {
    let admitted = app.admission.admit(None)?;
    let response = admitted.run(move |job| job.json_response(&app.store.list())).await?;
    Ok(JsonBytes(response))
}

/// Describes a classifier.
#[utoipa::path(get, operation_id = "getClassifier", path = "/api/v1/classifiers/{id}", tag = "classifiers", params(("id" = String, Path, description = "id of the classifier", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "the classifier", body = ClassifierMetadata),
        (status = 404, description = "no such classifier", body = ProblemBody)))]
pub async fn get(
    State(app): State<SharedApp>,
    ClassifierId(id): ClassifierId,
) -> Result<Json<ClassifierMetadata>, Problem> {
    app.store.metadata(&id).map(Json)
}

/// Downloads the file of a classifier, which `trueshot predict` reads.
#[utoipa::path(get, operation_id = "downloadClassifier", path = "/api/v1/classifiers/{id}/download", tag = "classifiers", params(("id" = String, Path, description = "id of the classifier", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "the file of the classifier", content_type = "application/octet-stream", body = Binary),
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
#[utoipa::path(delete, operation_id = "deleteClassifier", path = "/api/v1/classifiers/{id}", tag = "classifiers", params(("id" = String, Path, description = "id of the classifier", pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 204, description = "the classifier is deleted"),
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
