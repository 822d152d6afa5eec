//! Fixtures that several tests of this crate use.

use image::{ImageFormat, Rgb, RgbImage};
use tempfile::TempDir;

use crate::embedder::EmbeddedCollection;
use crate::error::Unreadable;
use crate::source::{Collection, SourceOptions};

/// A PNG file of a pattern.
pub(crate) fn photograph(shade: u8) -> Vec<u8> {
    let image = RgbImage::from_fn(40, 30, |x, y| Rgb([shade, (x * 7) as u8, (y * 5) as u8 ^ shade]));
    let mut file = std::io::Cursor::new(Vec::new());
    image.write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

/// A folder with files that have changed since it was listed: removed, truncated, emptied, replaced by a folder, and
/// replaced by another image.
pub(crate) fn changed_folder() -> (TempDir, Collection) {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("owl");
    std::fs::create_dir(&class).unwrap();
    let names = ["emptied", "folder", "removed", "replaced", "same", "truncated"];
    let path = |name: &str| class.join(format!("{name}.png"));
    for (number, name) in names.iter().enumerate() {
        std::fs::write(path(name), photograph(40 * number as u8)).unwrap();
    }
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    assert_eq!(collection.entries().len(), names.len());
    std::fs::write(path("emptied"), []).unwrap();
    std::fs::remove_file(path("folder")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    std::fs::remove_file(path("removed")).unwrap();
    std::fs::write(path("replaced"), photograph(7)).unwrap();
    let complete = std::fs::read(path("truncated")).unwrap();
    std::fs::write(path("truncated"), &complete[..complete.len() / 2]).unwrap();
    (folder, collection)
}

/// Checks that the embeddings of the [`changed_folder`] have rows of the readable files only, and that the others are
/// skipped with the reason.
pub(crate) fn assert_changes_are_reported(embedded: &EmbeddedCollection, collection: &Collection) {
    let items: Vec<&str> =
        (0..embedded.embeddings.len()).map(|row| embedded.embeddings.item(row).unwrap()).collect();
    assert_eq!(items, ["owl/replaced.png", "owl/same.png"]);
    let skipped: Vec<(&str, &Unreadable)> =
        embedded.skipped.iter().map(|skipped| (&*skipped.item, &skipped.reason)).collect();
    let [emptied, folder, removed, truncated] = &skipped[..] else { panic!("{skipped:?}") };
    assert_eq!(*emptied, ("owl/emptied.png", &Unreadable::Empty));
    assert!(matches!(folder, ("owl/folder.png", Unreadable::File(_))), "{folder:?}");
    assert!(matches!(removed, ("owl/removed.png", Unreadable::File(_))), "{removed:?}");
    assert_eq!(truncated.0, "owl/truncated.png");
    // The hash is that of the bytes that were embedded, so that a later repair notices another change.
    let replaced = collection.entries().iter().position(|entry| entry.item == "owl/replaced.png").unwrap();
    assert_eq!(embedded.hashes[replaced], Some(*blake3::hash(&photograph(7)).as_bytes()));
}
