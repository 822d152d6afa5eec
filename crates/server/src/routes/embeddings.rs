//! The operation that embeds images. A client that uses the same images several times, such as the web page, sends them
//! once and then works with their rows.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::Serialize;
use trueshot::audit::ImageMeasures;
use trueshot_vision::embedder::EmbeddingResult;
use utoipa::ToSchema;

use super::JsonBytes;
use crate::body::{BodyKind, receive};
use crate::json_rows::image_text;
use crate::openapi::PicturesBody;
use crate::problem::Problem;
use crate::request_rows::Queries;
use crate::state::SharedApp;

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
    /// The measures of the image as text, for `images` of an audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    image: Option<String>,
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
pub async fn post(State(app): State<SharedApp>, request: Request) -> Result<JsonBytes, Problem> {
    let (admitted, body) = receive(&app, request).await?;
    if !matches!(body.kind, BodyKind::Form(_)) {
        let error = "only images can be embedded";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error).hint("send multipart/form-data"));
    }
    let embedded = admitted.run(move |job| {
        let Queries { items, rows, measures } = Queries::parse(body, &app, &job.cancellation)?;
        let picture = |((item, row), measures): ((String, EmbeddingResult), Option<ImageMeasures>)| {
            let image = measures.as_ref().map(image_text);
            match row {
                Ok(row) => EmbeddedPicture { item, row: Some(row), image, error: None },
                Err(error) => {
                    EmbeddedPicture { item, row: None, image: None, error: Some(error.to_string()) }
                }
            }
        };
        let pictures = items.into_iter().zip(rows).zip(measures).map(picture).collect();
        let embedder = app.embedder.backbone().name().to_owned();
        job.json_response(&EmbeddedPictures { embedder, pictures })
    });
    Ok(JsonBytes(embedded.await?))
}
