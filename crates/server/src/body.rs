//! Receives the body of a request within the limits ([`receive`]). The content type gives its kind: JSON, Arrow, or
//! images in a form. `request_rows` parses it.

use std::pin::Pin;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::Bytes;

use crate::admission::{AdmittedRequest, body_too_long};
use crate::multipart::parse_boundary;
use crate::problem::Problem;
use crate::stall_timeout::Stalled;
use crate::state::SharedApp;

/// The complete body of a request.
pub struct RequestBody {
    /// The format that the content type names.
    pub kind: BodyKind,
    pub bytes: Bytes,
}

/// The format of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyKind {
    /// Rows as JSON.
    Json,
    /// Rows in Arrow's IPC format, as a file or as a stream.
    Arrow,
    /// A multipart form with files, and its boundary.
    Form(String),
}

/// Admits a request and receives its body.
pub async fn receive(state: &SharedApp, request: Request) -> Result<(AdmittedRequest, RequestBody), Problem> {
    let kind = parse_content_type(&request)?;
    let content_length = request.headers().get(header::CONTENT_LENGTH);
    let content_length = content_length.and_then(|length| length.to_str().ok()?.parse().ok());
    let mut admitted = state.admission.admit(content_length)?;
    let bytes = read_to_end(request, &mut admitted, state.limits.body).await?;
    Ok((admitted, RequestBody { kind, bytes }))
}

/// The format of the body by its content type.
fn parse_content_type(request: &Request) -> Result<BodyKind, Problem> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    // A content type that is not text is reported as `?`.
    let content_type = content_type.map_or("", |value| value.to_str().unwrap_or("?"));
    // Without parameters, such as the boundary of a form.
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "application/json" => Ok(BodyKind::Json),
        "application/vnd.apache.arrow.file" | "application/vnd.apache.arrow.stream" => Ok(BodyKind::Arrow),
        "multipart/form-data" => Ok(BodyKind::Form(parse_boundary(content_type)?)),
        _ => {
            let error = match media_type.as_str() {
                "" => "the request has no content type".into(),
                _ => format!("the content type '{media_type}' is not supported"),
            };
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error).hint(
                "send application/json, application/vnd.apache.arrow.stream (or .file) or multipart/form-data",
            ))
        }
    }
}

/// Receives a whole body. Memory is reserved for the bytes that have arrived, not for the announced length.
async fn read_to_end(
    request: Request,
    admitted: &mut AdmittedRequest,
    max_bytes: usize,
) -> Result<Bytes, Problem> {
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    loop {
        let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Some(frame) = admitted.before_deadline(next).await? else { return Ok(bytes.into()) };
        // Frames without data are trailers, which are ignored.
        let Ok(data) = frame.map_err(|error| receive_problem(&error))?.into_data() else { continue };
        if bytes.len() + data.len() > max_bytes {
            return Err(body_too_long(max_bytes));
        }
        admitted.reserve_memory(data.len()).await?;
        bytes.extend_from_slice(&data);
    }
}

/// The error response for a body that could not be received.
fn receive_problem(error: &axum::Error) -> Problem {
    match Stalled::from_error(error) {
        Some(stalled) => stalled.into(),
        None => Problem::malformed("the body ended before it was complete"),
    }
}
