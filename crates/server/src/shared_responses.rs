//! Responses and security that all operations of the OpenAPI description share: utoipa calls [`SharedResponses`], which
//! adds them to the description that it derives from the handlers in `routes`.

use utoipa::Modify;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Header, OpenApi, Ref, RefOr, Response, ResponseBuilder};

/// The name of the security scheme.
const TOKEN: &str = "token";

/// The operations that can return a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operations {
    Every,
    /// Operations that require the token.
    Guarded,
    /// Operations with a method other than GET: they change something or take computing time.
    Unsafe,
    /// Operations that wait in the queue and compute.
    Working,
    /// Operations with a body.
    Receiving,
}

/// The error responses: status, the operations that can return it, and its description.
const REFUSALS: [(u16, Operations, &str); 11] = [
    (400, Operations::Every, "the request cannot be parsed"),
    (401, Operations::Guarded, "the token is missing or wrong"),
    (403, Operations::Unsafe, "the request comes from a page of another origin"),
    (408, Operations::Receiving, "the body arrived too slowly"),
    (413, Operations::Receiving, "the request is too large, or the response would be"),
    (415, Operations::Receiving, "the content type is not supported"),
    (421, Operations::Every, "the host name of the request is not allowed"),
    (422, Operations::Receiving, "the request can be parsed but not carried out"),
    (429, Operations::Working, "too many requests are waiting"),
    (500, Operations::Working, "an error of the server; details are in its log"),
    (503, Operations::Working, "the request was not finished in time"),
];

/// Adds the responses and the security scheme to all operations.
pub struct SharedResponses;

impl Modify for SharedResponses {
    fn modify(&self, api: &mut OpenApi) {
        for (path, item) in &mut api.paths.paths {
            let is_guarded = path.starts_with("/api/") || path == "/metrics";
            // Of the GET requests, only a download and the list of classifiers wait for a compute slot.
            let has_work = path.ends_with("/download") || path == "/api/v1/classifiers";
            // Per HTTP method: whether it is unsafe, whether it has a body, and its operation, if the path has one.
            let kinds = [
                (false, false, &mut item.get),
                (true, true, &mut item.post),
                (true, false, &mut item.delete),
            ];
            for (is_unsafe, receives, operation) in kinds {
                let Some(operation) = operation else { continue };
                add_refusals(operation, |operations| match operations {
                    Operations::Every => true,
                    Operations::Guarded => is_guarded,
                    Operations::Unsafe => is_unsafe,
                    Operations::Working => is_unsafe || has_work,
                    Operations::Receiving => receives,
                });
                if is_guarded {
                    let token = SecurityRequirement::new::<_, _, &str>(TOKEN, []);
                    // The empty requirement makes the token optional: not every server has one.
                    operation.security = Some(vec![SecurityRequirement::default(), token]);
                }
            }
        }
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("needed if the server was started with a token"));
        let components = api.components.get_or_insert_default();
        components.add_security_scheme(TOKEN, SecurityScheme::Http(scheme.build()));
    }
}

/// Adds the error responses of the statuses for which `can_return` returns true.
fn add_refusals(operation: &mut Operation, can_return: impl Fn(Operations) -> bool) {
    for (status, operations, description) in REFUSALS {
        if can_return(operations) {
            let response = refusal(description, [429, 503].contains(&status));
            operation.responses.responses.insert(status.to_string(), RefOr::T(response));
        }
    }
}

/// An error response with a `Problem` as its body.
fn refusal(description: &str, has_retry_after: bool) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response = ResponseBuilder::new().description(description).content("application/json", content);
    match has_retry_after {
        true => {
            let mut header = Header::new(ObjectBuilder::new().schema_type(Type::Integer));
            header.description = Some("seconds to wait before the next attempt".into());
            response.header("Retry-After", header).build()
        }
        false => response.build(),
    }
}
