//! The operations of the API, one file per subject, and the extractors they share.

pub mod about;
pub mod audits;
pub mod classifiers;
pub mod embeddings;
pub mod predictions;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::problem::Problem;
use crate::store::no_such_classifier;

/// Query parameters. Their errors are [`Problem`]s like all error responses.
pub struct QueryParameters<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let problem = |rejection: QueryRejection| Problem::malformed(rejection.body_text());
        Query::try_from_uri(&parts.uri).map(|Query(parameters)| QueryParameters(parameters)).map_err(problem)
    }
}

/// The id in the path of a request. An id that is not valid UTF-8 is treated as unknown.
pub struct ClassifierId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for ClassifierId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(id)| ClassifierId(id)).map_err(|_| no_such_classifier(""))
    }
}

/// A response that is already serialized.
pub struct JsonBytes(pub Bytes);

impl IntoResponse for JsonBytes {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}
