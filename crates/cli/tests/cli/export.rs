//! Tests of `trueshot export`. tests/python/test_export.py compares the predictions of exported models with `predict`.

use crate::fixture::{EmbeddingsFolder, refused, text};
use trueshot::Embeddings;

/// A folder with the classifier `c.safetensors`, fitted to the embeddings `data.safetensors`.
fn folder_with_classifier() -> EmbeddingsFolder {
    let folder = EmbeddingsFolder::new();
    let fit = ["fit", "data.safetensors", "-m", "protonet", "-o", "c.safetensors"];
    folder.trueshot(&fit).assert().success();
    folder
}

#[test]
fn a_classifier_of_embeddings_becomes_an_onnx_file() {
    let folder = folder_with_classifier();
    let export = ["export", "c.safetensors", "-o", "c.onnx"];
    let done = folder.trueshot(&export).assert().success();
    let said = text(&done.get_output().stderr);
    assert!(said.contains("c.onnx: 8 classes by protonet, from embeddings (float32 [batch, 16])"), "{said}");
    assert!(done.get_output().stdout.is_empty());
    let bytes = std::fs::read(folder.path("c.onnx")).unwrap();
    let contains = |part: &str| bytes.windows(part.len()).any(|window| window == part.as_bytes());
    assert!(
        ["embedding", "probabilities", "unknown", "classes", "class 0"].iter().all(|part| contains(part))
    );
    // The file is replaced, with the same bytes.
    folder.trueshot(&export).assert().success();
    assert_eq!(std::fs::read(folder.path("c.onnx")).unwrap(), bytes);
    let before = folder.files();
    assert!(before.iter().all(|name| !name.starts_with('.')), "{before:?}");
}

#[test]
fn files_that_are_not_a_classifier_are_refused() {
    let folder = folder_with_classifier();
    let export = |classifier: &str| folder.trueshot(&["export", classifier, "-o", "x.onnx"]);
    refused(export("nowhere.safetensors"), &["cannot use nowhere.safetensors as a classifier"]);
    refused(export("data.safetensors"), &["data.safetensors contains embeddings, not a classifier"]);
    std::fs::write(folder.path("one.png"), "an image").unwrap();
    refused(export("one.png"), &["one.png is an image, not a classifier", "hint: give a classifier: "]);
    std::fs::write(folder.path("text.safetensors"), "no classifier").unwrap();
    refused(export("text.safetensors"), &["cannot use text.safetensors as a classifier"]);
    assert!(!folder.path("x.onnx").exists());
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_any_work() {
    let folder = folder_with_classifier();
    let export = |output: &str| folder.trueshot(&["export", "c.safetensors", "-o", output]);
    refused(export("missing/x.onnx"), &["cannot write missing/x.onnx", "missing is not a folder"]);
    std::fs::create_dir(folder.path("folder.onnx")).unwrap();
    refused(export("folder.onnx"), &["cannot write folder.onnx", "it is a folder"]);
    for name in ["x.safetensors", "x", "x.onnx.bak"] {
        let done = export(name).assert().code(2);
        let said = text(&done.get_output().stderr);
        assert!(said.contains(name) && said.contains(".onnx"), "{said}");
    }
    folder.trueshot(&["export", "c.safetensors"]).assert().code(2);
}

#[test]
fn a_backbone_that_is_not_built_in_must_be_given_or_left_out() {
    let folder = EmbeddingsFolder::new();
    let data = Embeddings::open(folder.path("data.safetensors")).unwrap().with_backbone("resnet50");
    data.write(folder.path("named.safetensors")).unwrap();
    let fit = ["fit", "named.safetensors", "-m", "protonet", "-o", "c.safetensors"];
    folder.trueshot(&fit).assert().success();
    let export =
        |more: &[&str]| folder.trueshot(&[&["export", "c.safetensors", "-o", "c.onnx"], more].concat());
    refused(
        export(&[]),
        &["embeddings of resnet50, which is not built in", "hint: ", "--backbone", "--head-only"],
    );
    refused(export(&["--backbone", "nowhere.onnx"]), &["cannot read nowhere.onnx"]);
    let other = ["trained on embeddings of resnet50, but the backbone is omniglot-conv4", "hint: "];
    refused(export(&["--backbone", "omniglot-conv4"]), &other);
    export(&["--backbone", "omniglot-conv4", "--head-only"]).assert().code(2);
    export(&["--head-only"]).assert().success();
    refused(export(&["--head-only", "--size", "96"]), &["--size applies to a backbone"]);
}

#[test]
fn a_page_needs_images() {
    let folder = folder_with_classifier();
    let expected = ["a page needs a backbone", "hint: ", "--backbone", ".onnx"];
    refused(folder.trueshot(&["export", "c.safetensors", "-o", "c.html"]), &expected);
    let head_only = ["a page needs a backbone", "hint: leave out --head-only, or write an .onnx file"];
    refused(folder.trueshot(&["export", "c.safetensors", "-o", "c.html", "--head-only"]), &head_only);
    assert!(!folder.path("c.html").exists());
}

#[test]
fn a_backbone_of_another_dimension_is_refused() {
    let folder = folder_with_classifier();
    let export = ["export", "c.safetensors", "-o", "c.onnx", "--backbone", "omniglot-conv4"];
    refused(folder.trueshot(&export), &["takes embeddings of 16 dimensions", "computes 64"]);
}
