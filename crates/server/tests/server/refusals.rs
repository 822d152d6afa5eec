//! Tests of refusals: the right status, the same form of message everywhere, and never an internal error.

use std::time::Duration;

use crate::client::{TestServer, drawings, form, noisy_support, request, send_to};
use axum::body::Body;
use axum::http::{Method, header};
use serde_json::{Value, json};
use trueshot_server::{Access, Limits};

const JSON: &str = "application/json";

#[test]
fn every_bad_body_has_its_status_and_its_reason() {
    let server = TestServer::new();
    let long = "x".repeat(600);
    let many = format!(r#"{{"rows":[{}],"labels":[]}}"#, vec!["[1]"; 20_001].join(","));
    let classes: Vec<String> = (0..501).map(|class| format!("c{class}")).collect();
    let cases: Vec<(u16, &str, String)> = vec![
        (400, "not valid JSON", "".into()),
        (400, "not valid JSON", "{".into()),
        (400, "not valid JSON", "nonsense".into()),
        (422, "expected an object with 'rows' and 'labels'", "[]".into()),
        (422, "missing field", "{}".into()),
        (422, "unknown field", r#"{"rows":[[1],[2]],"labels":["a","b"],"path":"/etc/passwd"}"#.into()),
        (422, "no rows", r#"{"rows":[],"labels":[]}"#.into()),
        (422, "row 1 has 1 numbers", r#"{"rows":[[1,2],[3]],"labels":["a","b"]}"#.into()),
        (422, "a row has no numbers", r#"{"rows":[[],[]],"labels":["a","b"]}"#.into()),
        (422, "'labels' has 1 entries for 2 rows", r#"{"rows":[[1],[2]],"labels":["a"]}"#.into()),
        (422, "'items' has 3", r#"{"rows":[[1],[2]],"labels":["a","b"],"items":["x","y","z"]}"#.into()),
        (422, "'confirmed' has 1", r#"{"rows":[[1],[2]],"labels":["a","b"],"confirmed":[true]}"#.into()),
        (422, "needs at least two classes", r#"{"rows":[[1],[2]],"labels":["a","a"]}"#.into()),
        (422, "must be finite", r#"{"rows":[[1],[1e39]],"labels":["a","b"]}"#.into()),
        (422, "up to 1e15", r#"{"rows":[[1],[1e20]],"labels":["a","b"]}"#.into()),
        (422, "invalid type: null", r#"{"rows":[[1],[null]],"labels":["a","b"]}"#.into()),
        (422, "600 bytes", json!({"rows": [[1], [2]], "labels": [long, "b"]}).to_string()),
        (422, "more than 20000 rows", many),
        (422, "501 classes", json!({"rows": vec![[1]; 501], "labels": classes}).to_string()),
        (422, "invalid type: sequence", format!(r#"{{"rows":{}"#, "[".repeat(5000))),
    ];
    for (status, reason, body) in cases {
        for path in ["/api/v1/audit", "/api/v1/classifiers"] {
            let refused = server.post(path, JSON, body.clone());
            let start: String = body.chars().take(80).collect();
            let error = refused.error();
            assert_eq!(refused.status, status, "{path} {start}: {error}");
            assert!(error.contains(reason), "{path} {start}: {error}");
        }
    }
}

#[test]
fn a_body_that_is_not_valid_arrow_is_refused() {
    let server = TestServer::new();
    for kind in ["application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"] {
        for body in [&b""[..], b"nonsense", b"ARROW1\0\0nonsenseARROW1"] {
            let refused = server.post("/api/v1/audit", kind, body);
            assert_eq!(refused.status, 400, "{}", refused.text());
            assert!(refused.error().contains("not a valid Arrow file"), "{}", refused.text());
        }
    }
}

#[test]
fn forms_that_cannot_be_used_are_refused() {
    let server = TestServer::new();
    let post = |kind: &str, body: Vec<u8>| server.post("/api/v1/audit", kind, body);
    assert_eq!(post("multipart/form-data", vec![]).status, 400, "no boundary");
    assert_eq!(post("multipart/form-data; boundary=edge", b"nonsense".to_vec()).status, 400);
    assert_eq!(
        post("multipart/form-data; boundary=edge", form(&drawings())[..400].to_vec()).status,
        400,
        "cut off"
    );
    let none = post("multipart/form-data; boundary=edge", form(&[]));
    assert_eq!(none.status, 422, "{}", none.text());
    let text = ("ant".to_owned(), "a.txt".to_owned(), b"text".to_vec());
    let unreadable = server.post_form("/api/v1/audit", &[text.clone(), text]);
    assert_eq!(unreadable.status, 422);
    assert!(unreadable.error().contains("unknown image format"), "{}", unreadable.text());
    let without = ("images".to_owned(), "a.png".to_owned(), drawings()[0].2.clone());
    let refused = server.post_form("/api/v1/audit", &[without]);
    assert!(refused.error().contains("which class"), "{}", refused.text());
}

#[test]
fn options_names_methods_and_types_that_do_not_exist_are_refused() {
    let server = TestServer::new();
    let support = noisy_support();
    let audit = |query: &str| server.post_json(&format!("/api/v1/audit?{query}"), &support);
    assert_eq!(audit("expected_noise=1").status, 422);
    assert_eq!(audit("expected_noise=NaN").status, 422);
    assert_eq!(audit("certainty=0.1").status, 422);
    assert_eq!(audit("neighbours=101").status, 422);
    assert_eq!(audit("neighbours=-1").status, 400);
    assert_eq!(audit("colour=red").status, 400);
    assert_eq!(audit("expected_noise=0.2&certainty=0.9&neighbours=0").status, 200);
    for method in ["oracle", "tranfs", "tranfs:model=/etc/passwd", "relabel:model=../x", "nonsense", ""] {
        let refused = server.post_json(&format!("/api/v1/classifiers?method={method}"), &support);
        assert_eq!(refused.status, 422, "{method}");
        assert!(refused.error().contains("unknown method"), "{}", refused.text());
    }
    for method in ["laplacianshot", "tim", "bd-cspn", "pt-map"] {
        let refused = server.post_json(&format!("/api/v1/classifiers?method={method}"), &support);
        assert_eq!(refused.status, 422, "{method}");
        assert!(refused.error().contains("is transductive"), "{}", refused.text());
        assert!(refused.text().contains("allowed: protonet, "), "{}", refused.text());
    }
    assert_eq!(server.post("/api/v1/audit", "text/plain", "x").status, 415);
    assert_eq!(server.post("/api/v1/audit", "", "x").status, 415);
    assert_eq!(server.post_json("/api/v1/embed", &support).status, 415);
}

#[test]
fn no_path_of_a_request_reaches_other_files() {
    let server = TestServer::new();
    std::fs::write(server.folder.join("secret.safetensors"), b"secret").unwrap();
    for id in ["nothing", "..%2Fsecret", "%2e%2e%2fsecret", "secret", "%00", "a%0Ab", "..", "%FF"] {
        for rest in ["", "/download"] {
            let answer = server.get(&format!("/api/v1/classifiers/{id}{rest}"));
            assert_eq!(answer.status, 404, "{id}{rest}");
            assert!(!answer.text().contains("secret\n"));
            assert!(answer.json()["error"].is_string(), "{}", answer.text());
        }
        let path = format!("/api/v1/classifiers/{id}/predict");
        assert!(server.post_json(&path, &json!({ "rows": [[1]] })).status.is_client_error());
    }
    for path in [
        "/assets/../Cargo.toml",
        "/assets/%2e%2e%2flib.rs",
        "/assets/nothing.js",
        "/assets/%FF",
        "/nothing",
        "/api",
        "/api/v2",
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.json()["error"].is_string());
    }
}

#[test]
fn an_http_method_that_is_not_supported_is_refused_with_the_allowed_ones() {
    let server = TestServer::new();
    for (verb, path, allowed) in [
        (Method::GET, "/api/v1/audit", "POST"),
        (Method::PUT, "/api/v1/classifiers", "GET,HEAD,POST"),
        (Method::POST, "/healthz", "GET,HEAD"),
    ] {
        let answer = server.send(request(verb, path).body(Body::empty()).unwrap());
        assert_eq!(answer.status, 405, "{path}");
        assert_eq!(answer.headers[header::ALLOW], allowed, "{path}");
        assert!(!answer.error().is_empty());
    }
}

#[test]
fn rows_of_another_width_and_a_classifier_that_is_not_there_are_refused() {
    let server = TestServer::new();
    let made = server.post_json("/api/v1/classifiers", &noisy_support()).json();
    let path = format!("/api/v1/classifiers/{}/predict", made["id"].as_str().unwrap());
    let refused = server.post_json(&path, &json!({ "rows": [[1, 2]] }));
    assert_eq!(refused.status, 422);
    assert!(refused.error().contains("2 dimensions"), "{}", refused.text());
    assert_eq!(server.post_json(&path, &json!({ "rows": [] })).status, 422);
    assert_eq!(server.post_form(&path, &drawings()).status, 422);
}

#[test]
fn a_body_that_is_too_large_is_refused_announced_or_not() {
    let server = TestServer::with(Limits { body: 2000, ..Limits::default() }, Access::default());
    let large = "x".repeat(3000);
    let announced = request(Method::POST, "/api/v1/audit").header(header::CONTENT_TYPE, JSON);
    let announced = announced.header(header::CONTENT_LENGTH, 3000).body(Body::from(large.clone())).unwrap();
    assert_eq!(server.send(announced).status, 413);
    assert_eq!(server.post("/api/v1/audit", JSON, large.clone()).status, 413, "not announced");
    let pictures =
        server.post_form("/api/v1/embed", &[("images".into(), "a.png".into(), large.into_bytes())]);
    assert_eq!(pictures.status, 413, "{}", pictures.text());
    let small = TestServer::with(Limits { pixels: 1000, ..Limits::default() }, Access::default());
    let embedded = small.post_form("/api/v1/embed", &drawings()[..1]).json();
    assert!(embedded["pictures"][0]["error"].as_str().unwrap().contains("1000 allowed"), "{embedded}");
}

#[test]
fn too_many_rows_to_fit_a_classifier_on_are_refused() {
    let server = TestServer::new();
    let rows: Vec<Vec<f32>> =
        (0..2001).map(|number| crate::client::row(number % 2, number)[..2].to_vec()).collect();
    let labels: Vec<usize> = (0..2001).map(|number| number % 2).collect();
    let refused = server.post_json("/api/v1/classifiers", &json!({ "rows": rows, "labels": labels }));
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(refused.error().contains("2001 rows"), "{}", refused.text());
    assert_eq!(server.post_json("/api/v1/audit", &json!({ "rows": rows, "labels": labels })).status, 200);
}

#[test]
fn a_response_that_would_be_too_long_is_refused_before_it_is_computed() {
    let server = TestServer::with(Limits { body: 600_000, ..Limits::default() }, Access::default());
    let names: Vec<String> = (0..200).map(|row| format!("{row:0500}")).collect();
    let labels: Vec<usize> = (0..200).map(|row| row % 2).collect();
    let rows: Vec<Vec<f32>> =
        (0..200).map(|number| crate::client::row(number % 2, number)[..8].to_vec()).collect();
    let support = json!({ "rows": rows, "labels": labels, "items": names });
    assert_eq!(server.post_json("/api/v1/audit?neighbours=0", &support).status, 200);
    let refused = server.post_json("/api/v1/audit?neighbours=50", &support);
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(
        refused.error().contains("the response would be longer than the allowed 600000 bytes"),
        "{}",
        refused.text()
    );
}

#[test]
fn requests_that_are_late_or_too_many_are_refused_with_retry_after() {
    let limits = Limits { request_time: Duration::ZERO, ..Limits::default() };
    let late = TestServer::with(limits, Access::default()).post_json("/api/v1/audit", &noisy_support());
    assert_eq!(late.status, 503, "{}", late.text());
    assert!(late.headers.contains_key(header::RETRY_AFTER));

    let server = TestServer::with(
        Limits { concurrent_requests: 1, queued_requests: 0, ..Limits::default() },
        Access::default(),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let body = noisy_support().to_string();
    let send = |body: String| {
        let request = request(Method::POST, "/api/v1/audit").header(header::CONTENT_TYPE, JSON);
        send_to(server.router.clone(), request.body(Body::from(body)).unwrap())
    };
    let statuses: Vec<u16> = runtime.block_on(async {
        let requests: Vec<_> = (0..40).map(|_| tokio::spawn(send(body.clone()))).collect();
        let mut statuses = Vec::new();
        for request in requests {
            let answer = request.await.unwrap();
            assert_eq!(answer.status == 429, answer.headers.contains_key(header::RETRY_AFTER));
            statuses.push(answer.status.as_u16());
        }
        statuses
    });
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(server.post_json("/api/v1/audit", &noisy_support()).status, 200, "the slots are released");
}

#[test]
fn other_hosts_other_origins_and_wrong_tokens_are_refused() {
    let token = "a token of some length";
    let access = Access::new(vec!["Shots.example".into()], Some(token));
    let server = TestServer::with(Limits::default(), access);
    let send = |host: &str, headers: &[(&str, &str)], method: Method, path: &str| {
        let mut request = axum::http::Request::builder().method(method).uri(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server.send(request.body(Body::empty()).unwrap()).status.as_u16()
    };
    let right = ("authorization", "Bearer a token of some length");
    for host in
        ["127.0.0.1:7878", "localhost", "LOCALHOST:1", "[::1]:7878", "shots.example:80", "192.168.1.7"]
    {
        assert_eq!(send(host, &[right], Method::GET, "/api/v1"), 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7878"] {
        assert_eq!(send(host, &[right], Method::GET, "/api/v1"), 421, "{host}");
        assert_eq!(send(host, &[right], Method::GET, "/"), 421, "{host}");
    }
    assert_eq!(send("", &[right], Method::GET, "/"), 400);
    for wrong in [
        "",
        "Bearer",
        "Bearer a token of some lengt",
        "Basic a token of some length",
        "a token of some length",
    ] {
        assert_eq!(send("localhost", &[("authorization", wrong)], Method::GET, "/api/v1"), 401, "{wrong}");
        assert_eq!(send("localhost", &[("authorization", wrong)], Method::GET, "/metrics"), 401);
    }
    assert_eq!(send("localhost", &[], Method::GET, "/api/v1/nothing"), 401);
    assert_eq!(send("localhost", &[], Method::GET, "/"), 200, "the page itself tells nothing");
    assert_eq!(send("localhost", &[], Method::GET, "/healthz"), 200);
    let delete = |origin: &str| {
        send("localhost:7878", &[right, ("origin", origin)], Method::DELETE, "/api/v1/classifiers/x")
    };
    assert_eq!(delete("http://localhost:7878"), 404);
    for origin in ["http://evil.example", "null", "http://localhost:1", "http://localhost:7878.evil.example"]
    {
        assert_eq!(delete(origin), 403, "{origin}");
    }
}

#[test]
fn every_response_has_the_security_headers() {
    let server = TestServer::new();
    for path in ["/", "/assets/main.js", "/api/v1", "/nothing"] {
        let answer = server.get(path);
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        assert!(!answer.headers.contains_key("access-control-allow-origin"));
    }
    let page = server.get("/").text();
    assert!(
        !page.contains("<script>") && !page.contains("style=") && !page.contains("http:"),
        "nothing inline"
    );
    let assets: Vec<&str> =
        page.split("/assets/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    for asset in assets.into_iter().chain(["server.js", "collection.js", "downloads.js"]) {
        assert_eq!(server.get(&format!("/assets/{asset}")).status, 200, "{asset}");
    }
}

#[test]
fn unusual_but_valid_support_sets_are_answered() {
    let server = TestServer::new();
    let sets: Vec<Value> = vec![
        json!({ "rows": [[1], [1]], "labels": ["a", "b"] }),
        json!({ "rows": [[0, 0], [0, 0], [0, 0]], "labels": ["a", "b", "b"] }),
        json!({ "rows": [[1e15], [-1e15], [1e-38]], "labels": [1, 2, 2] }),
        json!({ "rows": [[1e15, 1e15], [1e15, 1e15], [0, 1e-30]], "labels": ["a", "b", "a"] }),
        json!({ "rows": (0..40).map(|row| [row]).collect::<Vec<_>>(), "labels": (0..40).collect::<Vec<_>>() }),
        json!({ "rows": vec![[1, 2]; 300], "labels": (0..300).map(|row| row % 2).collect::<Vec<_>>() }),
        json!({ "rows": [[1, 0], [0, 1]], "labels": ["", "\u{0}\n"], "items": ["<b>", "../../x"] }),
    ];
    for set in sets {
        for path in [
            "/api/v1/audit",
            "/api/v1/audit?expected_noise=0.5",
            "/api/v1/classifiers",
            "/api/v1/classifiers?method=linear",
        ] {
            let answer = server.post_json(path, &set);
            let start: String = set.to_string().chars().take(90).collect();
            assert!(!answer.status.is_server_error(), "{path} {start}: {}", answer.text());
            assert!(
                !answer.text().contains("null,\"suggested\"") && !answer.text().contains("\"p_wrong\":null"),
                "{start}"
            );
        }
    }
}
