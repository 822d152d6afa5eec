//! Test fixture: sends requests to the server without a socket and returns status, headers and body.
#![allow(dead_code, missing_docs, reason = "every test file uses some of it")]

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use trueshot_server::{Access, App, Limits, ServerSettings, app};
use trueshot_vision::backbone::BackboneOptions;
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::{Embedder, Omniglot};

pub struct TestResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
}

impl TestResponse {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The error message of a refusal. Checks that it has the form of all refusals.
    pub fn error(&self) -> String {
        let body = self.json();
        body["error"].as_str().unwrap_or_else(|| panic!("no error in {body}")).to_owned()
    }
}

/// A server whose classifiers are in `folder`.
pub struct TestServer {
    pub router: Router,
    /// The warnings of [`App::new`].
    pub warnings: Vec<String>,
    pub folder: std::path::PathBuf,
    /// Deletes the folder on drop, if this server made it.
    _temporary_folder: Option<tempfile::TempDir>,
}

impl TestServer {
    pub fn new() -> Self {
        Self::with(Limits::default(), Access::default())
    }

    /// A server in a temporary folder.
    pub fn with(limits: Limits, access: Access) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let server = Self::on(temporary.path(), limits, access);
        TestServer { _temporary_folder: Some(temporary), ..server }
    }

    /// A server in an existing folder, which it does not delete.
    pub fn on(folder: &std::path::Path, limits: Limits, access: Access) -> Self {
        Self::try_on(folder, limits, access).unwrap()
    }

    pub fn try_on(folder: &std::path::Path, limits: Limits, access: Access) -> trueshot::Result<Self> {
        let embedder =
            Embedder::open("omniglot-conv4", &BackboneOptions::default(), &CacheLocation::Disabled).unwrap();
        let settings = ServerSettings { data_dir: folder.to_owned(), access, limits };
        let (state, warnings) = App::new(embedder, settings)?;
        let folder = folder.to_owned();
        Ok(TestServer { router: app(state), warnings, folder, _temporary_folder: None })
    }

    pub fn send(&self, request: Request<Body>) -> TestResponse {
        let router = self.router.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(send_to(router, request))
    }

    pub fn get(&self, path: &str) -> TestResponse {
        self.send(request(Method::GET, path).body(Body::empty()).unwrap())
    }

    pub fn delete(&self, path: &str) -> TestResponse {
        self.send(request(Method::DELETE, path).body(Body::empty()).unwrap())
    }

    pub fn post(&self, path: &str, kind: &str, body: impl Into<Body>) -> TestResponse {
        let request = request(Method::POST, path).header(header::CONTENT_TYPE, kind);
        self.send(request.body(body.into()).unwrap())
    }

    pub fn post_json(&self, path: &str, body: &Value) -> TestResponse {
        self.post(path, "application/json", body.to_string())
    }

    pub fn post_form(&self, path: &str, files: &[(String, String, Vec<u8>)]) -> TestResponse {
        self.post(path, "multipart/form-data; boundary=edge", form(files))
    }
}

pub async fn send_to(router: Router, request: Request<Body>) -> TestResponse {
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes().to_vec();
    TestResponse { status: parts.status, headers: parts.headers, bytes }
}

pub fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header(header::HOST, "127.0.0.1:7878")
}

/// A form with files: field, name, contents.
pub fn form(files: &[(String, String, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (field, name, contents) in files {
        let head = format!(
            "--edge\r\ncontent-disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\
             content-type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(contents);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--edge--\r\n");
    body
}

/// A number from -1 to 1 that depends on the seed alone.
fn pseudo_random(seed: usize) -> f32 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / 8_388_608.0 - 1.0
}

/// A row near the centre of a class.
pub fn row(class: usize, number: usize) -> Vec<f32> {
    let value = |column: usize| {
        3.0 * pseudo_random(class * 1000 + column)
            + 0.6 * pseudo_random(class * 77_777 + number * 101 + column)
    };
    (0..32).map(value).collect()
}

/// Three classes of six rows; the first row of each is labelled as the next class.
pub fn noisy_support() -> Value {
    let (mut rows, mut labels, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for class in 0..3 {
        for number in 0..6 {
            rows.push(row(class, number));
            labels.push(["ant", "bee", "cow"][if number == 0 { (class + 1) % 3 } else { class }]);
            items.push(format!("{class}-{number}.png"));
        }
    }
    json!({ "rows": rows, "labels": labels, "items": items })
}

/// Drawings of three characters, six each, as a form whose fields are named by the class.
pub fn drawings() -> Vec<(String, String, Vec<u8>)> {
    let omniglot = Omniglot::embedded().unwrap();
    let mut files = Vec::new();
    for (class, character) in [("ant", 10), ("bee", 400), ("cow", 900)] {
        for number in 0..6 {
            let png = omniglot.drawing(character, number).unwrap().to_png();
            files.push((class.to_owned(), format!("{class}-{number}.png"), png));
        }
    }
    files
}
