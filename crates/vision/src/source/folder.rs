//! A folder of class folders.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Collection, Place, Reading, paths};
use crate::error::{Result, Unreadable};
use crate::picture::MOST_BYTES;

/// Folders nest no deeper; a link that leads back up would never end.
const DEEPEST: usize = 8;

pub(super) fn list(root: &Path, reading: Reading<'_>) -> Result<Collection> {
    let mut files = Vec::new();
    walk(root, "", 0, &mut files)?;
    paths::collect(root, files, reading)
}

fn walk(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<(String, Place)>) -> Result<()> {
    let failed = |source| trueshot::Error::Read { path: folder.into(), source };
    for found in std::fs::read_dir(folder).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name().to_string_lossy().into_owned();
        if paths::is_hidden(&name) {
            continue;
        }
        let (path, item) = (found.path(), format!("{prefix}{name}"));
        if path.is_dir() {
            if depth + 1 >= DEEPEST {
                let problem = std::io::Error::other(format!("folders nest deeper than {DEEPEST}"));
                return Err(trueshot::Error::Read { path, source: problem }.into());
            }
            walk(&path, &format!("{item}/"), depth + 1, files)?;
        } else {
            files.push((item, Place::File(path)));
        }
    }
    Ok(())
}

/// The files in a class folder that are pictures by their name, sorted; Tiny-ImageNet has them one folder deeper.
pub(crate) fn picture_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let deeper = folder.join("images");
    let mut found = Vec::new();
    walk(if deeper.is_dir() { &deeper } else { folder }, "", 0, &mut found)?;
    let is_picture = |(item, place): (String, Place)| match place {
        Place::File(path) if paths::is_picture(&item) => Some(path),
        _ => None,
    };
    let mut files: Vec<PathBuf> = found.into_iter().filter_map(is_picture).collect();
    files.sort();
    Ok(files)
}

/// A file's bytes, if it is no larger than a picture may be.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let refused = |error: std::io::Error| Unreadable::File(error.to_string());
    let file = std::fs::File::open(path).map_err(refused)?;
    let metadata = file.metadata().map_err(refused)?;
    if !metadata.is_file() {
        return Err(Unreadable::File("not a regular file".into()));
    }
    if metadata.len() > MOST_BYTES {
        return Err(Unreadable::FileSize(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    // The file may grow while we read it.
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}
