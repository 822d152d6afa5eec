//! Error responses: a status, a message that says what is wrong and, if possible, a hint on what to do about it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every error response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// What is wrong.
    pub error: String,
    /// What to do about the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    body: ProblemBody,
    /// Seconds for the header `Retry-After`.
    retry_after: Option<u32>,
}

impl Problem {
    /// A problem without a hint.
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Problem { status, body: ProblemBody { error: error.into(), hint: None }, retry_after: None }
    }

    /// The request cannot be parsed.
    pub fn malformed(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// The request can be parsed but not carried out.
    pub fn unusable(error: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error)
    }

    /// The request is larger than a limit.
    pub fn too_large(error: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    }

    /// The path or the classifier does not exist.
    pub fn unknown(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    /// The queue of requests is full.
    pub fn busy() -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are waiting");
        Problem { retry_after: Some(1), ..problem }.hint("repeat the request after a second")
    }

    /// The request took longer than the limit of `seconds`.
    pub fn late(seconds: u64) -> Self {
        let error = format!("the request was not finished within {seconds} s");
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, error);
        Problem { retry_after: Some(5), ..problem }
            .hint("send fewer items per request, or start the server with a larger --timeout")
    }

    /// An internal error: the details go to the log of the server, not to the client.
    pub fn failed(what: &str, why: impl std::fmt::Display) -> Self {
        eprintln!("error: {what}: {}", trueshot::report::visible(&why.to_string()));
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{what} failed; details are in the log of the server"),
        )
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }

    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<trueshot::Error> for Problem {
    fn from(error: trueshot::Error) -> Self {
        use trueshot::Error;
        let status = match &error {
            Error::Malformed { .. } | Error::Damaged { .. } | Error::OtherContents { .. } => {
                StatusCode::BAD_REQUEST
            }
            Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::Read { .. } | Error::Write { .. } => {
                return Problem::failed("reading or writing a file", error);
            }
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let hint = error.hint().filter(|_| applies_to_requests(&error));
        let problem = Problem::new(status, error.to_string());
        match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }
}

/// Whether a hint of the library helps the sender of a request; most hints name options of the command line.
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
