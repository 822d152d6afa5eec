//! `POST /api/v1/embed`: computes the rows of images. A client that sends many requests about the same images, as the page
//! does, uploads them once and then sends their rows.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::JsonBytes;
use crate::body::{Kind, receive};
use crate::description::PicturesBody;
use crate::problem::Problem;
use crate::state::Shared;
use crate::support::Queries;

/// The rows of images.
#[derive(Serialize, ToSchema)]
pub struct EmbeddedPictures {
    /// The name of the network that computed the rows.
    embedder: String,
    /// One entry per image, in the order of the request.
    pictures: Vec<EmbeddedPicture>,
}

/// The row of an image, or why the image cannot be read.
#[derive(Serialize, ToSchema)]
pub struct EmbeddedPicture {
    /// The name of the file.
    item: String,
    /// The embedding of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    row: Option<Vec<f32>>,
    /// Why the image cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
}

/// Embeds images.
#[utoipa::path(post, operation_id = "embed", path = "/api/v1/embed", tag = "pictures",
    request_body(description = "images in fields of any name", content((PicturesBody = "multipart/form-data"))),
    responses(
        (status = 200, description = "one row per image", body = EmbeddedPictures)))]
pub async fn post(State(app): State<Shared>, request: Request) -> Result<JsonBytes, Problem> {
    let (ticket, body) = receive(&app, request).await?;
    if !matches!(body.kind, Kind::Form(_)) {
        let error = "only images can be embedded";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error).hint("send multipart/form-data"));
    }
    let embedded = ticket.work(move |job| {
        let Queries { items, rows, embedder } = Queries::of(body, &app, &job.watch)?;
        let picture = |(item, row): (String, Result<Vec<f32>, String>)| match row {
            Ok(row) => EmbeddedPicture { item, row: Some(row), error: None },
            Err(error) => EmbeddedPicture { item, row: None, error: Some(error) },
        };
        let pictures = items.into_iter().zip(rows).map(picture).collect();
        job.json(&EmbeddedPictures { embedder: embedder.unwrap_or_default(), pictures })
    });
    Ok(JsonBytes(embedded.await?))
}
