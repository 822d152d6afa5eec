//! Tests of `trueshot predict CLASSIFIER -`: an image or paths from standard input.

use crate::fixture::{refused, text};
use crate::photos::PhotoFolder;

/// Photos, and a classifier fitted to them.
fn fitted() -> PhotoFolder {
    let photos = PhotoFolder::new();
    photos.trueshot(&["fit", "photos", "-o", "classifier.safetensors"]).assert().success();
    photos
}

/// The lines that `predict - --format csv` prints, without the header.
fn predicted(photos: &PhotoFolder, input: impl Into<Vec<u8>>) -> Vec<String> {
    let mut command = photos.trueshot(&["predict", "classifier.safetensors", "-", "--format", "csv"]);
    let done = command.write_stdin(input).assert().success();
    text(&done.get_output().stdout).lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn one_image_is_classified() {
    let photos = fitted();
    let lines = predicted(&photos, std::fs::read(photos.path("photos/rings/1.png")).unwrap());
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("standard input,rings,"), "{lines:?}");
}

#[test]
fn paths_are_classified_in_their_order_whatever_the_line_ends() {
    let photos = fitted();
    let lines = predicted(&photos, "\u{feff}photos/stripes/2.png\r\n\r\nphotos/checks/0.png\r\nphotos/rings");
    assert_eq!(lines.len(), 8);
    assert!(lines[0].starts_with("photos/stripes/2.png,stripes,"), "{lines:?}");
    assert!(lines[1].starts_with("photos/checks/0.png,checks,"), "{lines:?}");
    assert!(lines[2].starts_with("photos/rings/0.png,rings,"), "{lines:?}");
    // A file name that starts with the magic bytes of BMP.
    std::fs::copy(photos.path("photos/rings/3.png"), photos.path("BM.png")).unwrap();
    assert!(predicted(&photos, "BM.png\n")[0].starts_with("BM.png,rings,"));
}

#[test]
fn paths_can_be_separated_by_nul() {
    let photos = fitted();
    let lines = predicted(&photos, "photos/rings/0.png\0photos/checks/1.png\0");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].starts_with("photos/checks/1.png,checks,"), "{lines:?}");
}

#[test]
fn a_path_that_does_not_exist_is_skipped() {
    let photos = fitted();
    let mut command = photos.trueshot(&["predict", "classifier.safetensors", "-", "--format", "csv"]);
    let done = command.write_stdin("no/such.png\nphotos/rings/0.png\n").assert().success();
    let told = text(&done.get_output().stderr);
    assert!(told.contains("warning: no/such.png is skipped: it does not exist"), "{told}");
    assert_eq!(text(&done.get_output().stdout).lines().count(), 2);
}

#[test]
fn what_is_neither_an_image_nor_a_list_of_paths_is_refused() {
    let photos = fitted();
    let refuse = |input: &[u8], expected: &[&str]| {
        let mut command = photos.trueshot(&["predict", "classifier.safetensors", "-"]);
        command.write_stdin(input);
        refused(command, expected);
    };
    refuse(b"", &["standard input is empty", "hint: give it one image, or paths of images, one per line"]);
    let said = |input: &[u8]| {
        let mut command = photos.trueshot(&["predict", "classifier.safetensors", "-"]);
        text(&command.write_stdin(input).assert().code(1).get_output().stderr)
    };
    assert!(said(b"no/such.png\n").contains("error: none of the images could be read"));
    assert!(said(b"\0\x01\x02").contains("unknown image format; supported: BMP"), "{}", said(b"\0\x01\x02"));
    let drawing = b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>";
    assert!(said(drawing).contains("SVG is not supported: a drawing without pixels"), "{}", said(drawing));
    let phone = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic";
    assert!(
        said(phone).contains("HEIC is not supported: convert it to JPEG or PNG first"),
        "{}",
        said(phone)
    );
    let avif = b"\0\0\0\x1cftypavif\0\0\0\0avifmif1";
    assert!(said(avif).contains("AVIF is not supported: convert it"), "{}", said(avif));
}
