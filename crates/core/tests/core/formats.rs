//! Tests of the readers of embeddings files: the same data in every format and variant gives the same contents, and
//! invalid contents are refused with their row.

use crate::samples::{Sample, arrow, contents, npy, npz, parquet};
use trueshot::embeddings::{Embeddings, Items, Precision};
use trueshot::error::Error;

fn read(bytes: Vec<u8>, extension: &str) -> Embeddings {
    let mut embeddings =
        Embeddings::read_bytes(bytes, extension).unwrap_or_else(|error| panic!("{extension}: {error}"));
    embeddings.check().unwrap();
    embeddings
}

#[test]
fn safetensors_are_read_back_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let sample = Sample::new(37, 5);
    let written =
        sample.embeddings().with_backbone("conv4").with_items(Items::from_names(&sample.items)).unwrap();
    written.write(&first).unwrap();
    let read = Embeddings::open(&first).unwrap();
    assert_eq!(contents(&read), contents(&written));
    assert_eq!(read.backbone(), Some("conv4"));
    assert_eq!(read.fingerprint(), written.fingerprint());
    read.write(&second).unwrap();
    assert_eq!(
        std::fs::read(&first).unwrap(),
        std::fs::read(&second).unwrap(),
        "the same data, the same bytes"
    );
}

#[test]
fn features_of_safetensors_are_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    Sample::new(16, 4).embeddings().write(&path).unwrap();
    let embeddings = Embeddings::open(&path).unwrap();
    // The mapping starts at a page boundary and the features at a multiple of 4 bytes within the file, so they can be
    // used in place.
    assert!(embeddings.features().as_f32().is_some());
}

#[test]
fn every_form_has_the_same_contents_and_fingerprint() {
    let sample = Sample::new(50, 6);
    let expected = sample.embeddings();
    for (form, extension, bytes) in sample.every_form() {
        let found = read(bytes, extension);
        let (values, labels, items) = contents(&found);
        assert_eq!(values, sample.values, "{form}");
        assert_eq!(labels, sample.labels, "{form}");
        if form.contains("items") {
            assert_eq!(items[49].as_deref(), Some(sample.items[49].as_str()), "{form}");
        }
        if found.features().precision() == Precision::F32 {
            assert_eq!(found.fingerprint(), expected.fingerprint(), "{form}");
        }
    }
}

#[test]
fn half_precision_is_kept_in_every_format() {
    let sample = Sample::new(20, 3);
    let mut seen = 0;
    for (form, extension, bytes) in sample.every_form() {
        if form.contains(" f16") {
            assert_eq!(read(bytes, extension).features().precision(), Precision::F16, "{form}");
            seen += 1;
        }
    }
    assert!(seen >= 4);
}

#[test]
fn labels_in_a_file_next_to_the_features_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let sample = Sample::new(9, 2);
    let features = folder.path().join("X_train.npy");
    std::fs::write(&features, npy::features(&sample)).unwrap();
    assert!(matches!(Embeddings::open(&features), Err(Error::NoLabels { .. })));
    std::fs::write(folder.path().join("y_train.npy"), npy::labels(&sample)).unwrap();
    assert_eq!(contents(&Embeddings::open(&features).unwrap()).1, sample.labels);
}

#[test]
fn labels_and_features_of_different_length_are_refused() {
    let (long, short) = (Sample::new(9, 2), Sample::new(8, 2));
    let archive = npz::archive(&[("x.npy", npy::features(&long)), ("y.npy", npy::labels(&short))], false);
    let refused = Embeddings::read_bytes(archive, "npz").err();
    assert!(matches!(refused, Some(Error::LengthMismatch { features: 9, labels: 8 })));
}

#[test]
fn rows_of_unequal_length_and_nulls_are_refused_with_their_row() {
    for (bytes, expected) in [
        (parquet::ragged(), "row 3 has 3 features"),
        (parquet::with_null_row(), "features of row 3 are null"),
        (parquet::with_null_value(), "row 3 has a feature that is null"),
    ] {
        let refused = Embeddings::read_bytes(bytes, "parquet").err().expect("refused").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let refused = Embeddings::read_bytes(arrow::ragged(), "arrow").err().expect("refused").to_string();
    assert!(refused.contains("row 3 has 3 features"), "{refused}");
}

#[test]
fn nan_is_refused_with_row_and_column_in_every_format() {
    let mut sample = Sample::new(12, 4);
    sample.values[4 * 7 + 2] = f32::NAN;
    for (form, extension, bytes) in sample.every_form() {
        let mut embeddings = Embeddings::read_bytes(bytes, extension).unwrap();
        let refused = embeddings.check().err();
        assert!(matches!(refused, Some(Error::NotFinite { row: 7, column: 2, .. })), "{form}");
    }
}

#[test]
fn the_reference_files_are_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference");
    for (name, rows, classes) in [("mini-test-features", 4000, 20), ("mini-outlier-features", 1360, 34)] {
        let path = folder.join(format!("{name}.safetensors"));
        if !path.exists() {
            eprintln!("SKIPPED: {} is not in this clone", path.display());
            continue;
        }
        let embeddings = Embeddings::open(&path).unwrap();
        assert_eq!((embeddings.len(), embeddings.dim()), (rows, 1600));
        assert_eq!(embeddings.features().precision(), Precision::F16);
        assert!(embeddings.item(rows - 1).is_some());
        assert!(embeddings.classes().len() >= classes.min(20));
    }
}
