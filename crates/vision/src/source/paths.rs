//! Classes from paths: which files of a folder or an archive are images, and which class each belongs to. Start with
//! [`collect`], which the modules for folders and archives call.
//!
//! The class of an image is its folder. Parent folders that all images share are dropped (archives often have one
//! folder around everything), and with pooling so are the folders of splits.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Collection, ImageLocation, SourceOptions};
use crate::error::{Error, Result, Skipped, Unreadable, UnsupportedFormat};

/// The file extensions of images, in lower case.
const IMAGE_EXTENSIONS: [&str; 10] =
    ["bmp", "gif", "jfif", "jpe", "jpeg", "jpg", "png", "tif", "tiff", "webp"];
/// File extensions of formats that are not supported, which errors mention by name.
const CONVERT_FIRST: [(&str, UnsupportedFormat); 18] = [
    ("heic", UnsupportedFormat::Heic),
    ("heif", UnsupportedFormat::Heic),
    ("hif", UnsupportedFormat::Heic),
    ("avif", UnsupportedFormat::Avif),
    ("jxl", UnsupportedFormat::JpegXl),
    ("jp2", UnsupportedFormat::Jpeg2000),
    ("svg", UnsupportedFormat::Svg),
    ("svgz", UnsupportedFormat::Svg),
    ("psd", UnsupportedFormat::Photoshop),
    ("dng", UnsupportedFormat::CameraRaw),
    ("cr2", UnsupportedFormat::CameraRaw),
    ("cr3", UnsupportedFormat::CameraRaw),
    ("nef", UnsupportedFormat::CameraRaw),
    ("arw", UnsupportedFormat::CameraRaw),
    ("orf", UnsupportedFormat::CameraRaw),
    ("raf", UnsupportedFormat::CameraRaw),
    ("rw2", UnsupportedFormat::CameraRaw),
    ("pef", UnsupportedFormat::CameraRaw),
];
/// The file extensions of videos.
const VIDEOS: [&str; 10] = ["mp4", "mov", "avi", "mkv", "webm", "m4v", "mpg", "mpeg", "3gp", "wmv"];
/// The folder into which repairs move images; it is not a class.
const QUARANTINE: &str = trueshot::repair::QUARANTINE;
/// The file in which repairs record their moves.
const REPAIR_LOG: &str = trueshot::repair::LOG;
/// Names of folders that are splits rather than classes.
const SPLIT_FOLDERS: [&str; 8] =
    ["train", "training", "val", "valid", "validation", "test", "testing", "trainval"];

/// Makes a collection of files named by their path within a source, parts separated by `/`. `skipped` are files that
/// cannot be used whatever their name.
pub(super) fn collect(
    path: &Path,
    files: Vec<(String, ImageLocation)>,
    mut skipped: Vec<Skipped>,
    options: SourceOptions<'_>,
) -> Result<Collection> {
    let mut images = Vec::new();
    for (item, location) in files {
        match skip_reason(&item) {
            Some(reason) => skipped.push(Skipped { item, class: None, reason }),
            None => images.push((item, location)),
        }
    }
    let depth = shared_depth(images.iter().map(|(item, _)| item.as_str()));
    let mut labelled = Vec::with_capacity(images.len());
    for (item, location) in images {
        let class = class_of(&item, depth, options);
        match class.or(options.labels_optional.then(String::new)) {
            Some(class) => labelled.push((class, item, location)),
            None => skipped.push(Skipped { item, class: None, reason: Unreadable::NoClass }),
        }
    }
    if !options.pool && !options.labels_optional {
        refuse_splits(path, labelled.iter().map(|(class, ..)| class.as_str()))?;
    }
    Ok(Collection::new(path, labelled, skipped))
}

/// A name from the file system or an archive. A name that is not UTF-8 is an error, with its invalid bytes written as
/// `\xff`: such names could be ambiguous in results, and a repair could not find the file again.
pub(super) fn utf8_name(bytes: &[u8]) -> std::result::Result<String, String> {
    let mut escaped = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        escaped.push_str(chunk.valid());
        escaped.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    if std::str::from_utf8(bytes).is_ok() { Ok(escaped) } else { Err(escaped) }
}

/// Whether files of that name are ignored without mention, such as system files.
pub(super) fn is_hidden(name: &str) -> bool {
    let is_system_file = name.eq_ignore_ascii_case("thumbs.db") || name == "__MACOSX";
    name.starts_with('.') || is_system_file || name == QUARANTINE || name == REPAIR_LOG
}

/// Why a file is skipped that is not an image by its extension; `None` for an image.
pub(super) fn skip_reason(item: &str) -> Option<Unreadable> {
    (!is_image(item)).then(|| known_skip_reason(item).unwrap_or(Unreadable::Name))
}

/// Why a file is skipped whose extension is that of a video or an unsupported image format; `None` for other files.
pub(super) fn known_skip_reason(item: &str) -> Option<Unreadable> {
    let extension = extension(item)?;
    if VIDEOS.contains(&extension.as_str()) {
        return Some(Unreadable::Video);
    }
    let kind = CONVERT_FIRST.iter().find(|(ending, _)| *ending == extension)?.1;
    Some(Unreadable::ConvertFirst(kind))
}

/// The extension of a file name, in lower case.
fn extension(item: &str) -> Option<String> {
    let name = item.rsplit('/').next().unwrap_or(item);
    name.rsplit_once('.').map(|(_, extension)| extension.to_lowercase())
}

/// Whether a file is an image by its extension.
pub fn is_image(item: &str) -> bool {
    extension(item).is_some_and(|extension| IMAGE_EXTENSIONS.contains(&extension.as_str()))
}

/// The number of parent folders that all images share. The folder of an image does not count, even if all images are in
/// the same one, because it is the class.
fn shared_depth<'a>(mut items: impl Iterator<Item = &'a str>) -> usize {
    fn folders(item: &str) -> Vec<&str> {
        let mut parts: Vec<&str> = item.split('/').collect();
        // The last part is the file, the one before it the class.
        parts.truncate(parts.len().saturating_sub(2));
        parts
    }
    let Some(first) = items.next() else { return 0 };
    let mut shared = folders(first);
    for item in items {
        let same = shared.iter().zip(folders(item)).take_while(|(a, b)| **a == *b).count();
        shared.truncate(same);
    }
    shared.len()
}

/// The class of an image: its folders without the first `depth`, which all images share. `None` if no folder is left.
fn class_of(item: &str, depth: usize, options: SourceOptions<'_>) -> Option<String> {
    let mut folders: Vec<&str> = item.split('/').skip(depth).collect();
    folders.pop();
    if options.pool && folders.len() > 1 && is_split(folders[0]) {
        folders.remove(0);
    }
    (!folders.is_empty()).then(|| folders.join("/"))
}

/// Whether a folder has the name of a split.
fn is_split(folder: &str) -> bool {
    SPLIT_FOLDERS.iter().any(|split| folder.eq_ignore_ascii_case(split))
}

/// Returns an error if the top folders of all classes are splits, as in `train/cat`: without pooling, each split would
/// have classes of its own.
fn refuse_splits<'a>(path: &Path, classes: impl Iterator<Item = &'a str>) -> Result<()> {
    let tops: BTreeSet<&str> = classes.map(|class| class.split('/').next().unwrap_or(class)).collect();
    if tops.is_empty() || !tops.iter().all(|top| is_split(top)) {
        return Ok(());
    }
    let splits = tops.into_iter().collect::<Vec<_>>().join(", ");
    Err(Error::SplitFolders { path: path.into(), found: splits })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collection(items: &[&str], pool: bool) -> Result<Collection> {
        let files = items.iter().map(|item| (item.to_string(), ImageLocation::Memory(bytes::Bytes::new())));
        let options = SourceOptions { pool, ..SourceOptions::default() };
        collect(Path::new("source"), files.collect(), Vec::new(), options)
    }

    fn classes(items: &[&str], pool: bool) -> Vec<String> {
        collection(items, pool).unwrap().classes().to_vec()
    }

    #[test]
    fn the_class_is_the_folder_without_shared_parent_folders() {
        assert_eq!(classes(&["owl/1.jpg", "ant/2.PNG"], false), ["ant", "owl"]);
        assert_eq!(classes(&["all/owl/1.jpg", "all/ant/2.jpg"], false), ["ant", "owl"]);
        assert_eq!(classes(&["owl/1.jpg"], false), ["owl"]);
        assert_eq!(classes(&["Latin/a/1.png", "Greek/b/1.png"], false), ["Greek/b", "Latin/a"]);
    }

    #[test]
    fn splits_are_pooled_only_when_asked_for() {
        let items = ["train/owl/1.jpg", "val/owl/1.jpg", "test/ant/1.jpg"];
        let pooled = collection(&items, true).unwrap();
        assert_eq!(pooled.classes(), ["ant", "owl"]);
        let names: Vec<_> = pooled.entries().iter().map(|entry| entry.item.as_str()).collect();
        assert_eq!(names, ["test/ant/1.jpg", "train/owl/1.jpg", "val/owl/1.jpg"]);
        let refused = collection(&items, false).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "source contains test, train, val, which are splits rather than classes"
        );
        // A class named `train` stays a class: it contains no class folders.
        assert_eq!(classes(&["x/train/1.jpg", "x/ship/1.jpg"], false), ["ship", "train"]);
    }

    #[test]
    fn images_without_labels_are_listed_if_labels_are_optional() {
        let items = ["cover.jpg", "train/1.jpg", "test/owl/2.jpg"];
        let files = items.map(|item| (item.to_owned(), ImageLocation::Memory(bytes::Bytes::new())));
        let options = SourceOptions { labels_optional: true, ..SourceOptions::default() };
        let images = collect(Path::new("source"), files.to_vec(), Vec::new(), options).unwrap();
        assert_eq!(images.classes(), ["", "test/owl", "train"]);
        assert_eq!((images.entries().len(), images.skipped().len()), (3, 0));
        assert!(collection(&items[1..], false).is_err(), "folders of splits are refused otherwise");
    }

    #[test]
    fn files_that_are_not_images_or_not_in_a_class_folder_are_skipped_with_the_reason() {
        let images = collection(&["owl/1.jpg", "owl/notes.txt", "cover.jpg", "owl/README"], false).unwrap();
        let skipped: Vec<String> = images.skipped().iter().map(Skipped::to_string).collect();
        assert_eq!(
            skipped,
            [
                "cover.jpg: not in a class folder",
                "owl/README: not an image by its file extension",
                "owl/notes.txt: not an image by its file extension"
            ]
        );
    }

    #[test]
    fn unsupported_formats_are_skipped_with_what_to_do() {
        let images = collection(&["owl/1.jpg", "owl/2.HEIC", "owl/3.nef", "owl/4.mov"], false).unwrap();
        let skipped: Vec<String> = images.skipped().iter().map(Skipped::to_string).collect();
        assert_eq!(
            skipped,
            [
                "owl/2.HEIC: HEIC is not supported: convert it to JPEG or PNG first (mogrify -format jpg *.heic)",
                "owl/3.nef: a camera's RAW file is not supported: convert it to JPEG or PNG first",
                "owl/4.mov: a video, not an image: extract single frames"
            ]
        );
    }
}
