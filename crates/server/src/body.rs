//! The body of a request: numbers as JSON or Arrow, or pictures as a form. What kind it is, its header says; here it is
//! only received, within the limits, and not yet understood.

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::{StatusCode, header};
use bytes::Bytes;

use crate::gate::{Ticket, over_limit};
use crate::limits::{LONGEST_NAME, MOST_ITEMS};
use crate::problem::Problem;
use crate::state::Shared;

/// What was sent.
pub enum Body {
    /// JSON.
    Json(Bytes),
    /// Arrow IPC, as a file or as a stream.
    Arrow(Bytes),
    /// The files of a form.
    Pictures(Vec<Picture>),
}

/// A file of a form.
pub struct Picture {
    /// The name of its field.
    pub field: String,
    /// The name of the file, maybe with folders.
    pub file: String,
    /// Its contents.
    pub bytes: Bytes,
}

#[derive(Clone, Copy)]
enum Kind {
    Json,
    Arrow,
    Pictures,
}

/// Lets a request in and receives its body.
pub async fn receive(state: &Shared, request: Request) -> Result<(Ticket, Body), Problem> {
    let kind = kind_of(&request)?;
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    let ticket = state.gate.enter(announced).await?;
    let most = state.limits.body;
    let body = ticket.within(received(kind, request, most)).await??;
    Ok((ticket, body))
}

async fn received(kind: Kind, request: Request, most: usize) -> Result<Body, Problem> {
    match kind {
        Kind::Json => Ok(Body::Json(whole(request, most).await?)),
        Kind::Arrow => Ok(Body::Arrow(whole(request, most).await?)),
        Kind::Pictures => Ok(Body::Pictures(pictures(request, most).await?)),
    }
}

fn kind_of(request: &Request) -> Result<Kind, Problem> {
    let given = request.headers().get(header::CONTENT_TYPE);
    let given = given.map_or("", |given| given.to_str().unwrap_or("?"));
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => Ok(Kind::Json),
        "application/vnd.apache.arrow.file" | "application/vnd.apache.arrow.stream" => Ok(Kind::Arrow),
        "multipart/form-data" => Ok(Kind::Pictures),
        _ => {
            let given = if essence.is_empty() { "not said".into() } else { format!("'{essence}'") };
            let error = format!("the content type is {given}");
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error).hint(
                "send application/json, application/vnd.apache.arrow.stream (or .file) or multipart/form-data",
            ))
        }
    }
}

async fn whole(request: Request, most: usize) -> Result<Bytes, Problem> {
    Bytes::from_request(request, &()).await.map_err(|refused| match refused.status() {
        StatusCode::PAYLOAD_TOO_LARGE => over_limit(most),
        _ => Problem::malformed("the body ended before it was complete"),
    })
}

async fn pictures(request: Request, most: usize) -> Result<Vec<Picture>, Problem> {
    let mut form = Multipart::from_request(request, &())
        .await
        .map_err(|refused| Problem::malformed(format!("the form cannot be read: {}", refused.body_text())))?;
    let mut pictures = Vec::new();
    while let Some(field) = form.next_field().await.map_err(|error| form_problem(&error, most))? {
        if pictures.len() == MOST_ITEMS {
            return Err(Problem::too_large(format!("more than {MOST_ITEMS} pictures")));
        }
        pictures.push(picture(field, pictures.len(), most).await?);
    }
    if pictures.is_empty() {
        return Err(Problem::unusable("the form has no pictures"));
    }
    Ok(pictures)
}

async fn picture(field: Field<'_>, number: usize, most: usize) -> Result<Picture, Problem> {
    let name = field.name().unwrap_or_default().to_owned();
    let unnamed = || format!("picture {}", number + 1);
    let file = field.file_name().filter(|file| !file.is_empty()).map_or_else(unnamed, str::to_owned);
    if name.len().max(file.len()) > LONGEST_NAME {
        return Err(Problem::unusable(format!(
            "picture {} has a name of more than {LONGEST_NAME} bytes",
            number + 1
        )));
    }
    let bytes = field.bytes().await.map_err(|error| form_problem(&error, most))?;
    Ok(Picture { field: name, file, bytes })
}

fn form_problem(error: &MultipartError, most: usize) -> Problem {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => over_limit(most),
        _ => Problem::malformed(format!("the form cannot be read: {}", error.body_text())),
    }
}
