//! Pictures in a tar: plain, whose members are read where they lie, or packed with gzip, which is unpacked into
//! memory once. Other packings (xz, zstd, zip) are for `tar xf` to undo.
//!
//! An archive comes from outside. Only regular members count; links and sparse files are passed over, names
//! are never used as paths in the file system, and what gzip unpacks to is limited by the size of the file.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::{Collection, Place, Reading, paths};
use crate::error::{Error, Result, Skipped, Unreadable};
use crate::picture::MOST_BYTES;

/// Pictures hardly compress; a hundred times their size is a lie.
const MOST_RATIO: u64 = 64;
/// What a tar is cut into.
const BLOCK: u64 = 512;
/// So much may any archive unpack to.
const ALWAYS_ALLOWED: u64 = 64 << 20;

pub(super) fn list(path: &Path, reading: Reading<'_>) -> Result<Collection> {
    let file = open(path)?;
    let length = file.metadata().map_err(|source| trueshot::Error::Read { path: path.into(), source })?.len();
    let mut archive = Archive::new(file);
    let place = |member: &mut tar::Entry<'_, File>| {
        let (offset, size) = (member.raw_file_position(), member.size());
        // Members fill whole blocks, the last one too.
        let end = size.checked_next_multiple_of(BLOCK).and_then(|size| offset.checked_add(size));
        match end.is_some_and(|end| end <= length) {
            true => Ok(Place::Part { offset, length: size }),
            false => Err("its last member is truncated".to_string()),
        }
    };
    // Seeking over the members reads the headers alone.
    let files = trueshot::guard::caught(|| {
        let members = archive.entries_with_seek().map_err(|error| error.to_string())?;
        members_of(members, place)
    });
    collect(path, files, reading)
}

pub(super) fn list_packed(path: &Path, reading: Reading<'_>) -> Result<Collection> {
    let file = open(path)?;
    let length = file.metadata().map_err(|source| trueshot::Error::Read { path: path.into(), source })?.len();
    let allowed = ALWAYS_ALLOWED.saturating_add(length.saturating_mul(MOST_RATIO));
    let mut unpacked = MultiGzDecoder::new(BufReader::new(file)).take(allowed);
    let place = |member: &mut tar::Entry<'_, &mut std::io::Take<MultiGzDecoder<BufReader<File>>>>| {
        let mut bytes = Vec::new();
        // Read as far as there is something, not as far as the header says.
        member.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok(Place::Held(bytes.into()))
    };
    let files = trueshot::guard::caught(|| {
        let mut archive = Archive::new(&mut unpacked);
        let members = archive.entries().map_err(|error| error.to_string())?;
        members_of(members, place)
    });
    if unpacked.limit() == 0 {
        return Err(Error::TooLarge { path: path.into(), allowed });
    }
    collect(path, files, reading)
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| trueshot::Error::Read { path: path.into(), source }.into())
}

/// The members that are files, and those whose names are not UTF-8; or what is wrong with the archive.
type Files = std::result::Result<(Vec<(String, Place)>, Vec<Skipped>), String>;

fn members_of<R: Read>(
    members: tar::Entries<'_, R>,
    mut place: impl FnMut(&mut tar::Entry<'_, R>) -> std::result::Result<Place, String>,
) -> Files {
    let (mut files, mut skipped) = (Vec::new(), Vec::new());
    for member in members {
        let mut member = member.map_err(|error| error.to_string())?;
        if !matches!(member.header().entry_type(), EntryType::Regular | EntryType::Continuous) {
            continue;
        }
        let (name, is_utf8) = match paths::name(&member.path_bytes()) {
            Ok(name) => (name, true),
            Err(escaped) => (escaped, false),
        };
        let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.iter().any(|part| paths::is_hidden(part)) {
            continue;
        }
        let item = parts.join("/");
        match is_utf8 {
            true => files.push((item, place(&mut member)?)),
            false => skipped.push(Skipped { item, class: None, reason: Unreadable::NotUtf8 }),
        }
    }
    Ok((files, skipped))
}

fn collect(path: &Path, files: Option<Files>, reading: Reading<'_>) -> Result<Collection> {
    let bad = |problem| Error::BadArchive { path: path.into(), problem };
    let found = files.unwrap_or_else(|| Err("its contents are inconsistent".into()));
    let (files, skipped) = found.map_err(bad)?;
    let mut collection = paths::collect(path, files, reading)?;
    collection.skipped.extend(skipped);
    collection.skipped.sort_by(|a, b| a.item.cmp(&b.item));
    Ok(collection)
}

/// A member's bytes.
pub(super) fn read(path: &Path, offset: u64, length: u64) -> Result<Vec<u8>, Unreadable> {
    let refused = |error: std::io::Error| Unreadable::File(error.to_string());
    if length > MOST_BYTES {
        return Err(Unreadable::FileSize(length));
    }
    let mut file = File::open(path).map_err(refused)?;
    file.seek(SeekFrom::Start(offset)).map_err(refused)?;
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(length).read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}
