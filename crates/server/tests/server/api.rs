//! Tests of audits, of classifiers and their storage, of metrics and of the OpenAPI description. Most refusals are in
//! `refusals.rs`.

use std::sync::Arc;

use crate::client::{TestServer, drawings, noisy_support, row};
use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use axum::http::{Method, header};
use serde_json::{Value, json};
use trueshot::predictor::Predictor;
use trueshot_server::{Access, Limits};

/// The rows of `support`, and its labels if `labelled`, as an Arrow stream.
fn arrow(support: &Value, labelled: bool) -> Vec<u8> {
    let rows = support["rows"].as_array().unwrap();
    let dim = rows[0].as_array().unwrap().len() as i32;
    let values: Vec<f32> = rows
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|value| value.as_f64().unwrap() as f32)
        .collect();
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let features: ArrayRef =
        Arc::new(FixedSizeListArray::new(item.clone(), dim, Arc::new(Float32Array::from(values)), None));
    let mut fields = vec![Field::new("features", DataType::FixedSizeList(item, dim), false)];
    let mut columns = vec![features];
    if labelled {
        let labels: Vec<&str> =
            support["labels"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        fields.push(Field::new("label", DataType::Utf8, false));
        columns.push(Arc::new(StringArray::from(labels)));
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    bytes
}

/// An Arrow stream as an Arrow file.
fn arrow_file(stream: &[u8]) -> Vec<u8> {
    let reader = arrow_ipc::reader::StreamReader::try_new(stream, None).unwrap();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &reader.schema()).unwrap();
    reader.for_each(|batch| writer.write(&batch.unwrap()).unwrap());
    writer.into_inner().unwrap()
}

/// The index and the suggested class of every item with a suggestion.
fn suspects(audit: &Value) -> Vec<(usize, String)> {
    let items = audit["items"].as_array().unwrap().iter().enumerate();
    let suspect = |(index, item): (usize, &Value)| {
        let suggested = item["suggested"].as_str()?;
        Some((index, suggested.to_owned()))
    };
    items.filter_map(suspect).collect()
}

#[test]
fn an_audit_finds_wrong_labels_in_json_and_arrow() {
    let server = TestServer::new();
    let support = noisy_support();
    let expected = [(0, "ant".to_owned()), (6, "bee".to_owned()), (12, "cow".to_owned())];
    let from_json = server.post_json("/api/v1/audit", &support);
    assert_eq!(from_json.status, 200, "{}", from_json.text());
    assert_eq!(suspects(&from_json.json()), expected);
    assert_eq!(from_json.json()["items"][0]["item"], "0-0.png");
    let from_arrow =
        server.post("/api/v1/audit", "application/vnd.apache.arrow.stream", arrow(&support, true));
    assert_eq!(from_arrow.status, 200, "{}", from_arrow.text());
    assert_eq!(suspects(&from_arrow.json()), expected);
    let file = arrow_file(&arrow(&support, true));
    let from_file = server.post("/api/v1/audit", "application/vnd.apache.arrow.file", file);
    assert_eq!(suspects(&from_file.json()), expected);
}

#[test]
fn requests_of_the_documentation_get_the_documented_answers() {
    let page = include_str!("../../../../docs/serve.md");
    let server = TestServer::new();
    let (_, rest) = page.split_once("-H 'content-type: application/json' -d '\n").unwrap();
    let answer = server
        .post("/api/v1/audit", "application/json", rest.split_once("'\n```").unwrap().0.to_owned())
        .json();
    let (_, shown) = page.split_once("```json\n{\"item\": \"4.jpg\"").unwrap();
    let shown = format!("{{\"item\": \"4.jpg\"{}", shown.split_once(", ...]}").unwrap().0) + "]}";
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let found = &answer["items"][3];
    for key in ["item", "given", "verdict", "action", "suggested"] {
        assert_eq!(found[key], shown[key], "{key}");
    }
    for key in ["p_wrong", "weight", "p_outlier"] {
        let difference = found[key].as_f64().unwrap() - shown[key].as_f64().unwrap();
        assert!(difference.abs() < 1e-4, "{key}: {} and {}", found[key], shown[key]);
    }
    assert_eq!(found["neighbours"][0]["item"], shown["neighbours"][0]["item"]);
    let (_, expected_wrong) = page.split_once("`expected_wrong`\n(").unwrap();
    let expected_wrong: f64 = expected_wrong.split_once(')').unwrap().0.parse().unwrap();
    assert!((answer["expected_wrong"].as_f64().unwrap() - expected_wrong).abs() <= 0.05, "{answer}");
    let keys = [
        "method",
        "classes",
        "expected_wrong",
        "counts",
        "duplicates",
        "image_problems",
        "embedder",
        "skipped",
    ];
    for key in keys {
        assert!(answer.get(key).is_some(), "{key}");
    }
    let refused = server.post("/api/v1/audit", "application/x-www-form-urlencoded", "x").text();
    let problem: Value = serde_json::from_str(&refused).unwrap();
    for text in [problem["error"].as_str().unwrap(), problem["hint"].as_str().unwrap()] {
        assert!(page.contains(text), "{text}");
    }
    let refused = server.post("/api/v1/audit", "application/json", r#"{"rows": [[1, 2], [3]]}"#);
    assert!(page.contains(&refused.error()), "{}", refused.error());
}

#[test]
fn labels_that_cannot_be_judged_get_a_warning_and_no_changes() {
    let server = TestServer::new();
    let rows = noisy_support()["rows"].clone();
    let row = |number: usize| rows[number].clone();
    let cases = [
        ("two items", vec![row(1), row(7)], vec!["a", "b"], "every class has a single item"),
        ("identical rows", vec![row(1); 6], vec!["a", "a", "a", "b", "b", "b"], "all items are identical"),
        (
            "a class twice",
            vec![row(1), row(2), row(3), row(1), row(2), row(3), row(7), row(8), row(9)],
            vec!["a", "a", "a", "copy", "copy", "copy", "c", "c", "c"],
            "classes 'a' and 'copy' contain the same items",
        ),
    ];
    for (name, rows, labels, warning) in cases {
        let answer = server.post_json("/api/v1/audit", &json!({ "rows": rows, "labels": labels }));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let audit = answer.json();
        assert!(audit["warnings"].to_string().contains(warning), "{name}: {}", audit["warnings"]);
        assert_eq!(
            (&audit["counts"]["relabel"], &audit["counts"]["quarantine"]),
            (&json!(0), &json!(0)),
            "{name}"
        );
        assert_eq!(audit["counts"]["items"], labels.len(), "{name}");
    }
}

#[test]
fn certainty_decides_between_changes_and_review() {
    let server = TestServer::new();
    let counts = |certainty: &str| {
        let answer = server.post_json(&format!("/api/v1/audit?certainty={certainty}"), &noisy_support());
        let counts = answer.json()["counts"].clone();
        let of = |name: &str| counts[name].as_u64().unwrap();
        (of("relabel") + of("quarantine"), of("review"), of("keep"))
    };
    let (changes, review, keep) = counts("0.75");
    assert!(changes >= 3 && changes + review + keep == 18);
    let (changes, review, keep) = counts("1");
    assert_eq!((changes, review + keep), (0, 18), "nothing is certain to 100 %");
}

#[test]
fn confirmed_items_are_kept() {
    let server = TestServer::new();
    let mut support = noisy_support();
    support["confirmed"] = json!((0..18).map(|row| row == 0).collect::<Vec<_>>());
    let audit = server.post_json("/api/v1/audit?neighbours=2", &support).json();
    assert_eq!(audit["items"][0]["verdict"], "keep");
    assert_eq!(audit["items"][0]["confirmed"], true);
    assert_eq!(audit["items"][1]["neighbours"].as_array().unwrap().len(), 2);
}

#[test]
fn the_class_of_an_image_is_its_field_or_folder_and_unreadable_images_are_listed() {
    let server = TestServer::new();
    let mut files = drawings();
    files.push(("ant".into(), "broken.png".into(), b"\x89PNG\r\n\x1a\n".to_vec()));
    let by_field = server.post_form("/api/v1/audit", &files);
    assert_eq!(by_field.status, 200, "{}", by_field.text());
    let by_field = by_field.json();
    assert_eq!(by_field["items"].as_array().unwrap().len(), 18);
    assert_eq!(by_field["skipped"][0]["item"], "broken.png");
    let problems = by_field["image_problems"].as_array().unwrap();
    assert_eq!(
        problems.last().unwrap(),
        &json!({"item": "broken.png", "given": "ant", "kinds": ["unreadable"]})
    );
    assert!(by_field["embedder"].as_str().unwrap().starts_with("omniglot-conv4"));
    let in_folders: Vec<_> = drawings()
        .into_iter()
        .map(|(class, name, bytes)| ("images".to_owned(), format!("photos/{class}/{name}"), bytes))
        .collect();
    let by_folder = server.post_form("/api/v1/audit", &in_folders).json();
    assert_eq!(by_folder["items"][0]["given"], "ant");
    assert_eq!(by_folder["items"][0]["p_wrong"], by_field["items"][0]["p_wrong"]);
}

/// The web page embeds images once and audits their rows with the returned measures.
#[test]
fn rows_with_the_measures_of_their_images_are_audited_like_the_images() {
    let server = TestServer::new();
    let mut files = drawings();
    files.push(("bee".into(), "again.png".into(), files[0].2.clone()));
    let from_images = server.post_form("/api/v1/audit", &files).json();
    let embedded = server.post_form("/api/v1/embed", &files).json();
    let pictures = embedded["pictures"].as_array().unwrap();
    let column = |key: &str| -> Vec<Value> { pictures.iter().map(|picture| picture[key].clone()).collect() };
    let labels: Vec<&String> = files.iter().map(|(class, _, _)| class).collect();
    let mut body = json!({ "rows": column("row"), "labels": labels, "items": column("item"), "images": column("image") });
    let from_rows = server.post_json("/api/v1/audit", &body).json();
    assert_eq!(from_rows["duplicates"], from_images["duplicates"]);
    assert_eq!(from_rows["duplicates"][0]["label_conflict"], true, "{}", from_rows["duplicates"]);
    assert_eq!(from_rows["image_problems"], from_images["image_problems"]);

    body["images"][0] = Value::Null;
    assert_eq!(server.post_json("/api/v1/audit", &body).status, 200);
    for broken in [json!("AAAA"), json!("no base64!"), json!(7)] {
        body["images"][0] = broken;
        assert_eq!(server.post_json("/api/v1/audit", &body).status, 422);
    }
    body["images"] = json!([null]);
    assert!(server.post_json("/api/v1/audit", &body).error().contains("'images' has 1 entries for 19 rows"));
}

#[test]
fn a_classifier_is_created_listed_used_downloaded_and_deleted() {
    let server = TestServer::new();
    let made = server.post_json("/api/v1/classifiers", &noisy_support());
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/classifiers/{id}");
    assert_eq!(made.headers[header::LOCATION], path);
    assert_eq!(made.json()["method"], "relabel");
    let again = server.post_json("/api/v1/classifiers?method=relabel", &noisy_support());
    assert_eq!(again.json()["id"], id.as_str(), "the same support set makes the same classifier");
    assert_eq!(server.get("/api/v1/classifiers").json().as_array().unwrap().len(), 1);
    assert_eq!(server.get(&path).json()["classes"], json!(["ant", "bee", "cow"]));

    let queries = json!({ "rows": [row(0, 50), row(1, 50), row(2, 50)], "items": ["a", "b", "c"] });
    let answers = server.post_json(&format!("{path}/predict?probabilities=true"), &queries).json();
    let classes: Vec<&str> =
        answers["predictions"].as_array().unwrap().iter().map(|p| p["class"].as_str().unwrap()).collect();
    assert_eq!(classes, ["ant", "bee", "cow"]);
    assert_eq!(answers["predictions"][0]["item"], "a");
    let probabilities = answers["predictions"][0]["probabilities"].as_array().unwrap();
    assert_eq!(probabilities.len(), 3);
    let sum: f64 = probabilities.iter().map(|p| p.as_f64().unwrap()).sum();
    let unknown = answers["predictions"][0]["unknown"].as_f64().unwrap();
    assert!(
        (sum + unknown - 1.0).abs() < 1e-5,
        "the probabilities of the classes and of none of them: {answers}"
    );
    let predict = format!("{path}/predict");
    let from_arrow =
        server.post(&predict, "application/vnd.apache.arrow.stream", arrow(&queries, false)).json();
    assert_eq!(from_arrow["predictions"][1]["class"], "bee", "{from_arrow}");

    let file = server.get(&format!("{path}/download"));
    let predictor = Predictor::read_bytes(file.bytes, "downloaded").unwrap();
    assert_eq!(predictor.classes(), ["ant", "bee", "cow"]);
    assert!(predictor.audit().is_some(), "the audit is part of the file");
    assert_eq!(server.delete(&path).status, 204);
    assert_eq!(server.delete(&path).status, 404);
    assert_eq!(server.get(&path).status, 404);
    assert_eq!(server.get("/api/v1/classifiers").json(), json!([]));
}

#[test]
fn a_classifier_fitted_on_images_classifies_images() {
    let server = TestServer::new();
    let made = server.post_form("/api/v1/classifiers?method=protonet", &drawings());
    assert_eq!(made.status, 201, "{}", made.text());
    let path = format!("/api/v1/classifiers/{}/predict", made.json()["id"].as_str().unwrap());
    let mut queries: Vec<_> = drawings().into_iter().step_by(6).collect();
    queries.push(("images".into(), "no.png".into(), b"no picture".to_vec()));
    let answers = server.post_form(&path, &queries).json();
    assert_eq!(answers["predictions"][2]["class"], "cow", "{answers}");
    assert!(answers["predictions"][3]["error"].as_str().unwrap().contains("unknown image format"));
    let from_rows = server.post_json("/api/v1/classifiers", &noisy_support()).json();
    let path = format!("/api/v1/classifiers/{}/predict", from_rows["id"].as_str().unwrap());
    let refused = server.post_form(&path, &queries);
    assert_eq!(refused.status, 422);
    assert!(refused.error().contains("embedder is not known"), "{}", refused.text());
}

#[test]
fn every_method_that_is_listed_makes_a_classifier() {
    let server = TestServer::new();
    let about = server.get("/api/v1").json();
    let methods = about["methods"].as_array().unwrap();
    assert!(methods.len() > 8, "{about}");
    for method in methods {
        let path =
            format!("/api/v1/classifiers?method={}", method["name"].as_str().unwrap().replace('+', "%2B"));
        let made = server.post_json(&path, &noisy_support());
        assert_eq!(made.status, 201, "{method}: {}", made.text());
    }
}

#[test]
fn rows_of_the_embed_route_are_audited_like_the_images() {
    let server = TestServer::new();
    let embedded = server.post_form("/api/v1/embed", &drawings()).json();
    let pictures = embedded["pictures"].as_array().unwrap();
    let labels: Vec<String> = drawings().into_iter().map(|(class, ..)| class).collect();
    let rows: Vec<&Value> = pictures.iter().map(|picture| &picture["row"]).collect();
    let support = json!({ "rows": rows, "labels": labels, "embedder": embedded["embedder"] });
    let from_rows = server.post_json("/api/v1/audit", &support).json();
    let from_images = server.post_form("/api/v1/audit", &drawings()).json();
    for (row, picture) in
        from_rows["items"].as_array().unwrap().iter().zip(from_images["items"].as_array().unwrap())
    {
        assert_eq!(row["p_wrong"], picture["p_wrong"]);
    }
}

#[test]
fn classifiers_outlive_the_server_and_a_damaged_one_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let start = || TestServer::on(folder.path(), Limits::default(), Access::default());
    let made = start().post_json("/api/v1/classifiers", &noisy_support()).json();
    let id = made["id"].as_str().unwrap();
    let restarted = start();
    assert!(restarted.warnings.is_empty(), "{:?}", restarted.warnings);
    let mut kept = restarted.get(&format!("/api/v1/classifiers/{id}")).json();
    let mut before = made.clone();
    // Only the response to POST has "skipped"; after a restart, "created" is the time of the file.
    before.as_object_mut().unwrap().remove("skipped");
    assert!(kept["created"].as_u64().unwrap().abs_diff(before["created"].as_u64().unwrap()) <= 60, "{kept}");
    kept["created"] = before["created"].clone();
    assert_eq!(kept, before);
    let path = format!("/api/v1/classifiers/{id}/predict");
    assert_eq!(
        restarted.post_json(&path, &json!({ "rows": [row(1, 9)] })).json()["predictions"][0]["class"],
        "bee"
    );
    drop(restarted);

    let files = folder.path().join("classifiers");
    let file = files.join(format!("{id}.safetensors"));
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    std::fs::write(files.join(format!("{}.safetensors", "0".repeat(32))), b"nonsense").unwrap();
    std::fs::write(files.join("notes.txt"), b"not ours").unwrap();
    let damaged = start();
    assert_eq!(damaged.warnings.len(), 2, "{:?}", damaged.warnings);
    // Sorted by name: the file with nonsense is the first.
    assert!(damaged.warnings[1].contains(id) && damaged.warnings[1].contains("do not match its name"));
    assert_eq!(damaged.get("/api/v1/classifiers").json(), json!([]));
    assert!(file.exists(), "nothing is deleted");
}

#[test]
fn a_classifier_that_changed_on_the_disk_is_not_used() {
    let server = TestServer::new();
    let made = server.post_json("/api/v1/classifiers", &noisy_support()).json();
    let other = server.post_json("/api/v1/classifiers?method=protonet", &noisy_support()).json();
    let (id, other) = (made["id"].as_str().unwrap(), other["id"].as_str().unwrap());
    let path = format!("/api/v1/classifiers/{id}");
    let file = |id: &str| server.folder.join(format!("classifiers/{id}.safetensors"));
    let right = std::fs::read(file(id)).unwrap();
    let send = || server.post_json(&format!("{path}/predict"), &json!({ "rows": [row(1, 9)] }));
    assert_eq!(send().status, 200);

    std::fs::copy(file(other), file(id)).unwrap();
    for answer in [send(), server.get(&format!("{path}/download"))] {
        assert_eq!(answer.status, 500, "{}", answer.text());
        assert!(answer.error().contains("has changed on the server's disk"), "{}", answer.text());
    }
    std::fs::write(file(id), &right).unwrap();
    assert_eq!(send().json()["predictions"][0]["class"], "bee", "a file that was restored is used again");

    std::fs::write(file(id), b"nonsense").unwrap();
    assert_eq!(server.post_json("/api/v1/classifiers", &noisy_support()).status, 201);
    assert_eq!(std::fs::read(file(id)).unwrap(), right, "creating it again restores its file");
    std::fs::remove_file(file(id)).unwrap();
    assert_eq!(send().status, 404);
    assert_eq!(server.post_json("/api/v1/classifiers", &noisy_support()).status, 201);
    assert_eq!(send().status, 200);
}

#[test]
fn after_concurrent_creation_and_deletion_a_classifier_has_a_file_exactly_if_it_is_listed() {
    let server = TestServer::new();
    let made = server.post_json("/api/v1/classifiers?method=protonet", &noisy_support()).json();
    let path = format!("/api/v1/classifiers/{}", made["id"].as_str().unwrap());
    let file = server.folder.join(format!("classifiers/{}.safetensors", made["id"].as_str().unwrap()));
    for _ in 0..40 {
        std::thread::scope(|scope| {
            scope.spawn(|| server.post_json("/api/v1/classifiers?method=protonet", &noisy_support()));
            scope.spawn(|| server.delete(&path));
        });
        assert_eq!(file.exists(), server.get(&path).status == 200);
    }
}

#[test]
fn two_servers_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = TestServer::on(folder.path(), Limits::default(), Access::default());
    let refused = TestServer::try_on(folder.path(), Limits::default(), Access::default()).err().unwrap();
    assert!(matches!(refused, trueshot::Error::Locked { .. }), "{refused}");
    drop(first);
    assert!(TestServer::try_on(folder.path(), Limits::default(), Access::default()).is_ok());
}

#[test]
fn an_image_with_a_control_character_in_its_name_is_skipped() {
    let server = TestServer::new();
    let mut files = drawings();
    files[4].1 = "ant-\u{7}.png".into();
    let audit = server.post_form("/api/v1/audit", &files);
    assert_eq!(audit.status, 200, "{}", audit.text());
    assert_eq!(audit.json()["items"].as_array().unwrap().len(), 17);
    let skipped = &audit.json()["skipped"][0];
    assert_eq!(skipped["item"], "ant-\u{7}.png");
    assert_eq!(skipped["class"], "ant");
    assert!(skipped["reason"].as_str().unwrap().contains("control character (U+0007)"), "{skipped}");
    let made = server.post_form("/api/v1/classifiers?method=protonet", &files).json();
    assert_eq!((&made["items"], &made["skipped"][0]["class"]), (&json!(17), &json!("ant")));
    let predict = format!("/api/v1/classifiers/{}/predict", made["id"].as_str().unwrap());
    let predictions = server.post_form(&predict, &files[3..6]).json()["predictions"].clone();
    assert_eq!(predictions[0]["class"], "ant");
    assert!(predictions[1]["error"].is_string() && predictions[2]["class"].is_string(), "{predictions}");
    let embedded = server.post_form("/api/v1/embed", &files[3..6]).json()["pictures"].clone();
    assert!(embedded[0]["row"].is_array() && embedded[1]["error"].is_string(), "{embedded}");
}

#[test]
fn metrics_count_requests_and_images() {
    let server = TestServer::new();
    assert_eq!(server.get("/healthz").text(), "ok\n");
    server.post_form("/api/v1/embed", &drawings()[..2]);
    server.get("/nothing");
    let metrics = server.get("/metrics").text();
    for line in [
        r#"trueshot_requests_total{route="/api/v1/embed",method="POST",status="200"} 1"#,
        r#"trueshot_requests_total{route="other",method="GET",status="404"} 1"#,
        r#"trueshot_request_duration_seconds_count{route="/healthz",method="GET"} 1"#,
        // The request for the metrics itself.
        "trueshot_requests_in_flight 1",
        "trueshot_pictures_embedded_total 2",
        "trueshot_embedding_cache_hits_total 0",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
}

#[test]
fn the_openapi_description_is_complete() {
    let server = TestServer::new();
    let description = server.get("/openapi.json").json();
    let paths: Vec<&String> = description["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/api/v1",
            "/api/v1/audit",
            "/api/v1/classifiers",
            "/api/v1/classifiers/{id}",
            "/api/v1/classifiers/{id}/download",
            "/api/v1/classifiers/{id}/predict",
            "/api/v1/embed",
            "/healthz",
            "/metrics"
        ]
    );
    let operations = description["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<&str> =
        operations.clone().map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let unique_ids: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(unique_ids.len(), ids.len(), "{ids:?}");
    for operation in operations {
        let responses = operation["responses"].as_object().unwrap();
        // 421 Misdirected Request: the host name is not allowed.
        assert!(responses.contains_key("400") && responses.contains_key("421"), "{operation}");
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
            let schema = &response["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{status}");
            let is_temporary = ["429", "503"].contains(&status.as_str());
            assert_eq!(response["headers"]["Retry-After"].is_object(), is_temporary, "{status}");
        }
    }
    let parameters = description["paths"]["/api/v1/audit"]["post"]["parameters"].as_array().unwrap();
    let neighbours = parameters.iter().find(|parameter| parameter["name"] == "neighbours").unwrap();
    assert_eq!(neighbours["schema"]["maximum"].as_f64(), Some(trueshot::audit::MAX_NEIGHBOURS as f64));
    let made = &description["paths"]["/api/v1/classifiers"]["post"]["responses"]["201"];
    let links: Vec<&String> = made["links"].as_object().unwrap().keys().collect();
    assert_eq!(links, ["deleteClassifier", "downloadClassifier", "getClassifier", "predict"]);
    assert!(links.iter().all(|link| ids.contains(&link.as_str())));
}

#[test]
fn head_requests_are_answered() {
    let server = TestServer::new();
    assert_eq!(
        server
            .send(crate::client::request(Method::HEAD, "/healthz").body(Default::default()).unwrap())
            .status,
        200
    );
}
