//! The body of a request: numbers as JSON or Arrow, or pictures as a form. Its header says which. Here it is only
//! received, within the limits, and not yet understood.

use std::pin::Pin;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::Bytes;

use crate::gate::{Ticket, over_limit};
use crate::multipart::boundary_of;
use crate::problem::Problem;
use crate::progress::Stalled;
use crate::state::Shared;

/// What was sent.
pub struct Received {
    /// What it is.
    pub kind: Kind,
    /// All of it.
    pub bytes: Bytes,
}

/// What a body is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// JSON.
    Json,
    /// Arrow IPC, as a file or as a stream.
    Arrow,
    /// The files of a form, with the boundary between them.
    Form(String),
}

/// Lets a request in and receives its body.
pub async fn receive(state: &Shared, request: Request) -> Result<(Ticket, Received), Problem> {
    let kind = kind_of(&request)?;
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    let mut ticket = state.gate.enter(announced)?;
    let bytes = whole(request, &mut ticket, state.limits.body).await?;
    Ok((ticket, Received { kind, bytes }))
}

fn kind_of(request: &Request) -> Result<Kind, Problem> {
    let given = request.headers().get(header::CONTENT_TYPE);
    let given = given.map_or("", |given| given.to_str().unwrap_or("?"));
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => Ok(Kind::Json),
        "application/vnd.apache.arrow.file" | "application/vnd.apache.arrow.stream" => Ok(Kind::Arrow),
        "multipart/form-data" => Ok(Kind::Form(boundary_of(given)?)),
        _ => {
            let error = match essence.as_str() {
                "" => "the request has no content type".into(),
                _ => format!("the content type '{essence}' is not supported"),
            };
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error).hint(
                "send application/json, application/vnd.apache.arrow.stream (or .file) or multipart/form-data",
            ))
        }
    }
}

/// Receives all of a body. Memory is taken for what has arrived, whatever length was announced.
async fn whole(request: Request, ticket: &mut Ticket, most: usize) -> Result<Bytes, Problem> {
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    loop {
        let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Some(frame) = ticket.within(next).await? else { return Ok(bytes.into()) };
        let Ok(data) = frame.map_err(|error| unreceived(&error))?.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(over_limit(most));
        }
        ticket.hold(data.len()).await?;
        bytes.extend_from_slice(&data);
    }
}

fn unreceived(error: &axum::Error) -> Problem {
    match Stalled::find(error) {
        Some(stalled) => stalled.into(),
        None => Problem::malformed("the body ended before it was complete"),
    }
}
