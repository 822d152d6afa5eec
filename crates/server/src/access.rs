//! Access control: which hosts, origins and tokens are accepted, and the security headers of every response.
//!
//! A server on the loopback address can be reached by every page that is open in the user's browser. Such a page can
//! send some requests without permission, and with a domain name that resolves to 127.0.0.1 (DNS rebinding) it could
//! also read the responses. So the `Host` of a request must be an IP address or an allowed name, and a request that
//! changes something must not have another origin. On other addresses a token is required as well.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;
use crate::state::SharedApp;

/// The hosts and the token that requests must have.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Allowed host names in lower case, besides `localhost`.
    names: Vec<String>,
    /// The hash of the token. Comparing hashes takes the same time wherever they differ.
    token: Option<blake3::Hash>,
}

/// The headers that restrict what the browser lets the page, and other pages that embed it, do.
const SECURITY_HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; \
         connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(self), microphone=(), geolocation=()"),
];

impl Access {
    /// Accepts IP addresses, `localhost` and these names as hosts; requires the token, if one is given.
    pub fn new(names: Vec<String>, token: Option<&str>) -> Self {
        let names = names.into_iter().map(|name| name.to_ascii_lowercase()).collect();
        Access { names, token: token.map(|token| blake3::hash(token.as_bytes())) }
    }

    /// Checks host, origin and token. The page itself needs no token: it asks the user for the token.
    fn check_request(&self, request: &Request) -> Result<(), Problem> {
        let host = parse_host(request)?;
        if !self.is_known_host(host.host()) {
            let error = format!("the host name '{}' is not allowed", host.host());
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, error)
                .hint("use the IP address of the server, or start it with --allow-host NAME"));
        }
        let only_reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
        if !only_reads && !is_own_origin(request.headers(), &host) {
            let error = "requests from pages of another origin are not allowed";
            return Err(Problem::new(StatusCode::FORBIDDEN, error));
        }
        let path = request.uri().path();
        let is_guarded = path.starts_with("/api/") || path == "/api" || path == "/metrics";
        if is_guarded { self.check_token(request.headers()) } else { Ok(()) }
    }

    /// Whether requests may name this host: an IP address (IPv6 in brackets), `localhost` or an allowed name.
    fn is_known_host(&self, host: &str) -> bool {
        let name = host.to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        bare.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name)
    }

    /// Checks the token in the header `Authorization: Bearer TOKEN`, if the server requires one.
    fn check_token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        const SCHEME: &[u8] = b"bearer ";
        let Some(token) = &self.token else { return Ok(()) };
        let authorization = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        let bearer = authorization
            .split_at_checked(SCHEME.len())
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        if bearer.is_some_and(|(_, sent)| blake3::hash(sent.trim_ascii()) == *token) {
            return Ok(());
        }
        Err(Problem::new(StatusCode::UNAUTHORIZED, "the token is missing or wrong")
            .hint("send the header 'Authorization: Bearer TOKEN'"))
    }
}

/// The host that the request is for, by its `Host` header.
fn parse_host(request: &Request) -> Result<Authority, Problem> {
    let header = request.headers().get(header::HOST);
    let host = header.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    host.ok_or_else(|| Problem::malformed("the request has no valid Host header"))
}

/// Whether the origin is this server or missing: only browsers send one, with every request that may change something.
fn is_own_origin(headers: &HeaderMap, host: &Authority) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    // Browsers send `null` for pages without an address, such as local files. It is refused like any other origin.
    let origin = origin.to_str().unwrap_or("null");
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str()))
}

/// Refuses requests without access, and adds the security headers to every response.
pub async fn check_access(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let mut response = match app.access.check_request(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}
