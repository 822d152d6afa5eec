//! Images in a folder of class folders ([`list`]), and images in any folder without classes ([`images_below`]).
//!
//! [`list`] follows links to folders, because a data set may consist of links. It therefore detects loops of links, and
//! limits the depth. [`images_below`] ignores links to folders, so it needs neither.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Collection, ImageLocation, SourceOptions, paths};
use crate::decoded_image::MAX_FILE_BYTES;
use crate::error::{Result, Skipped, Unreadable};

/// The deepest nesting of folders in [`list`], including the given one.
const MAX_DEPTH: usize = 8;

/// Lists the images of a folder of class folders.
pub(super) fn list(root: &Path, options: SourceOptions<'_>) -> Result<Collection> {
    let mut walk = FolderWalk::default();
    walk.walk(root, "")?;
    let mut collection = paths::collect(root, walk.files, walk.skipped, options)?;
    collection.empty_folders = walk.empty;
    collection.empty_folders.sort();
    Ok(collection)
}

/// Collects the files of a folder and the folders below it. Names are paths below the folder, with `/` between parts.
#[derive(Default)]
struct FolderWalk {
    /// The name and location of each file, image or not.
    files: Vec<(String, ImageLocation)>,
    skipped: Vec<Skipped>,
    /// Folders without files or folders in them, apart from hidden ones.
    empty: Vec<String>,
    /// The canonical paths of the folders above this one: a link to one of them would be an endless loop.
    above: Vec<PathBuf>,
}

impl FolderWalk {
    /// Collects the files below `folder`; `prefix` is its name with a `/` at the end, and empty for the given folder.
    fn walk(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let failed = |source| trueshot::Error::Read { path: folder.into(), source };
        let true_path = std::fs::canonicalize(folder).map_err(failed)?;
        if self.above.contains(&true_path) {
            let item = prefix.trim_end_matches('/').to_owned();
            self.skipped.push(Skipped { item, class: None, reason: Unreadable::Loop });
            return Ok(());
        }
        if self.above.len() >= MAX_DEPTH {
            let problem = std::io::Error::other(format!("folders nest deeper than {MAX_DEPTH}"));
            return Err(failed(problem).into());
        }
        self.above.push(true_path);
        let count_before = self.files.len() + self.skipped.len() + self.empty.len();
        match std::fs::read_dir(folder) {
            Ok(entries) => {
                for entry in entries {
                    self.visit(&entry.map_err(failed)?, prefix)?;
                }
            }
            Err(error) if prefix.is_empty() => return Err(failed(error).into()),
            // A folder without permission does not prevent the use of other folders.
            Err(error) => self.skipped.push(Skipped::folder(prefix.trim_end_matches('/').to_owned(), &error)),
        }
        // Nothing was added by this folder or those below it. The given folder itself is not a class, so not listed.
        if self.files.len() + self.skipped.len() + self.empty.len() == count_before && !prefix.is_empty() {
            self.empty.push(prefix.trim_end_matches('/').to_owned());
        }
        self.above.pop();
        Ok(())
    }

    /// Adds one entry of a folder: a file, or the files of a folder.
    fn visit(&mut self, entry: &std::fs::DirEntry, prefix: &str) -> Result<()> {
        let name = match paths::utf8_name(entry.file_name().as_encoded_bytes()) {
            Ok(name) => name,
            Err(escaped) => {
                let item = format!("{prefix}{escaped}");
                self.skipped.push(Skipped { item, class: None, reason: Unreadable::NotUtf8 });
                return Ok(());
            }
        };
        if paths::is_hidden(&name) {
            return Ok(());
        }
        let (path, item) = (entry.path(), format!("{prefix}{name}"));
        if path.is_dir() {
            return self.walk(&path, &format!("{item}/"));
        }
        self.files.push((item, ImageLocation::File(path)));
        Ok(())
    }
}

/// The images below a folder, and the other files.
#[derive(Debug, Default)]
pub struct ImageFiles {
    /// The name of each image, which is its path as text, and its path.
    pub files: Vec<(String, PathBuf)>,
    /// The other files, with the reason why they are left out.
    pub skipped: Vec<Skipped>,
}

/// An image by its path, or all images in a folder and below. Unlike in a [`Collection`], folders are not classes: they
/// may nest to any depth, and links to folders are not followed, because they may form loops.
pub fn images_below(path: &Path) -> Result<ImageFiles> {
    let ImageFiles { mut files, mut skipped } = ImageFiles::default();
    let mut add = |path: PathBuf, is_given: bool| {
        let (item, reason) = match paths::utf8_name(path.as_os_str().as_encoded_bytes()) {
            Err(escaped) => (escaped, Some(Unreadable::NotUtf8)),
            // A file that the user names is read whatever its extension.
            Ok(name) if is_given => (name, None),
            Ok(name) => {
                let reason = paths::skip_reason(&name);
                (name, reason)
            }
        };
        match reason {
            None => files.push((item, path)),
            Some(reason) => skipped.push(Skipped { item, class: None, reason }),
        }
    };
    // The folders that are still to be read, and the entries for those that cannot be read.
    let (mut folders, mut unreadable) = (Vec::new(), Vec::new());
    if path.is_dir() {
        folders.push(path.to_owned());
    } else {
        add(path.into(), true);
    }
    while let Some(folder) = folders.pop() {
        let failed = |source| trueshot::Error::Read { path: folder.clone(), source };
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if folder == path => return Err(failed(error).into()),
            Err(error) => {
                unreadable.push(Skipped::folder(folder.to_string_lossy().into_owned(), &error));
                continue;
            }
        };
        for entry in entries {
            let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).map_err(failed)?;
            if paths::is_hidden(&name.to_string_lossy()) {
                continue;
            }
            if !path.is_dir() {
                add(path, false);
            } else if !path.is_symlink() {
                folders.push(path);
            }
        }
    }
    files.sort();
    skipped.extend(unreadable);
    skipped.sort_by(|a, b| a.item.cmp(&b.item));
    Ok(ImageFiles { files, skipped })
}

/// The paths of the images in a class folder, sorted, and the number of files and folders that are refused: their names
/// are not UTF-8, or the folder cannot be read. Whether a file is an image is decided by its extension. In
/// Tiny-ImageNet the images are one folder deeper, in `images`.
pub(crate) fn class_images(folder: &Path) -> Result<(Vec<PathBuf>, usize)> {
    let deeper = folder.join("images");
    let mut walk = FolderWalk::default();
    walk.walk(if deeper.is_dir() { &deeper } else { folder }, "")?;
    let is_image = |(item, location): (String, ImageLocation)| match location {
        ImageLocation::File(path) if paths::is_image(&item) => Some(path),
        _ => None,
    };
    let mut files: Vec<PathBuf> = walk.files.into_iter().filter_map(is_image).collect();
    files.sort();
    let is_refused =
        |skipped: &&Skipped| matches!(skipped.reason, Unreadable::NotUtf8 | Unreadable::Folder(_));
    Ok((files, walk.skipped.iter().filter(is_refused).count()))
}

/// Reads a file that is not larger than allowed for an image.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let refused = |error: std::io::Error| Unreadable::File(error.to_string());
    // Checked before opening: opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(refused)?;
    if !metadata.is_file() {
        return Err(Unreadable::File("not a regular file".into()));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(Unreadable::FileSize(metadata.len()));
    }
    let file = std::fs::File::open(path).map_err(refused)?;
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    // The file may have grown since its size was checked; bytes beyond the limit are cut off.
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}
