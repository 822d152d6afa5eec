//! The one form of every refusal: a status, a line that says what is wrong and, if known, a hint.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    body: ProblemBody,
    retry_after: Option<u32>,
}

impl Problem {
    /// A refusal.
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Problem { status, body: ProblemBody { error: error.into(), hint: None }, retry_after: None }
    }

    /// The request is not even of the right form.
    pub fn malformed(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// The request can be read, and what it asks for cannot be done.
    pub fn unusable(error: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error)
    }

    /// Too much was sent.
    pub fn too_large(error: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    }

    /// There is no such thing.
    pub fn unknown(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    /// More is asked than can be done at once.
    pub fn busy() -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are waiting already");
        Problem { retry_after: Some(1), ..problem }.hint("ask again in a second")
    }

    /// The time for a request is over.
    pub fn late(seconds: u64) -> Self {
        let error = format!("not done within {seconds} s");
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, error);
        Problem { retry_after: Some(5), ..problem }
            .hint("send fewer items at once, or start the server with a larger --timeout")
    }

    /// Something of ours failed; what it was is for the log, not for strangers.
    pub fn failed(what: &str, why: impl std::fmt::Display) -> Self {
        eprintln!("error: {what}: {}", trueshot::report::visible(&why.to_string()));
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{what} failed; the server's log says why"))
    }

    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }

    /// The status it is answered with.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<trueshot::Error> for Problem {
    fn from(error: trueshot::Error) -> Self {
        use trueshot::Error;
        let status = match &error {
            Error::Malformed { .. } | Error::Damaged { .. } => StatusCode::BAD_REQUEST,
            Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::Read { .. } | Error::Write { .. } => {
                return Problem::failed("reading or writing a file", error);
            }
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let hint = error.hint().filter(|_| applies_to_requests(&error));
        let problem = Problem::new(status, error.to_string());
        hint.into_iter().fold(problem, Problem::hint)
    }
}

/// Whether a hint of the library helps somebody who sent a request, rather than a command.
fn applies_to_requests(error: &trueshot::Error) -> bool {
    matches!(error, trueshot::Error::UnknownMethod { .. })
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
