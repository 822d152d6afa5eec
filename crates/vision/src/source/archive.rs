//! Images in a tar archive: plain, whose members are read in place, or compressed with gzip, which is decompressed into
//! memory once. Other compressions must be unpacked first.
//!
//! An archive is untrusted. Only regular members are read; links and sparse files are skipped, names are never used as
//! paths in the file system, and the decompressed size is limited by the size of the file.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::{Collection, ImageLocation, SourceOptions, paths};
use crate::decoded_image::MAX_FILE_BYTES;
use crate::error::{Error, Result, Skipped, Unreadable};

/// The largest decompressed size as a multiple of the file: images hardly compress.
const MAX_RATIO: u64 = 64;
/// The block size of a tar archive.
const BLOCK_BYTES: u64 = 512;
/// Every archive may decompress to this size.
const ALWAYS_ALLOWED_BYTES: u64 = 64 << 20;

pub(super) fn list(path: &Path, options: SourceOptions<'_>) -> Result<Collection> {
    let file = open(path)?;
    let length = file.metadata().map_err(|source| trueshot::Error::Read { path: path.into(), source })?.len();
    let mut archive = Archive::new(file);
    let location = |member: &mut tar::Entry<'_, File>| {
        let (offset, size) = (member.raw_file_position(), member.size());
        // Members fill whole blocks, even the last.
        let end = size.checked_next_multiple_of(BLOCK_BYTES).and_then(|size| offset.checked_add(size));
        match end.is_some_and(|end| end <= length) {
            true => Ok(ImageLocation::Range { offset, length: size }),
            false => Err("its last member is truncated".to_string()),
        }
    };
    // Seeking over the members reads only the headers.
    let files = trueshot::guard::caught(|| {
        let members = archive.entries_with_seek().map_err(|error| error.to_string())?;
        list_members(members, location)
    });
    into_collection(path, files, options)
}

pub(super) fn list_gzip(path: &Path, options: SourceOptions<'_>) -> Result<Collection> {
    let file = open(path)?;
    let length = file.metadata().map_err(|source| trueshot::Error::Read { path: path.into(), source })?.len();
    let allowed = max_unpacked_bytes(length);
    let mut unpacked = MultiGzDecoder::new(BufReader::new(file)).take(allowed);
    let location = |member: &mut tar::Entry<'_, &mut std::io::Take<MultiGzDecoder<BufReader<File>>>>| {
        let mut bytes = Vec::new();
        // Reads what is there, not what the header claims.
        member.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok(ImageLocation::Memory(bytes.into()))
    };
    let files = trueshot::guard::caught(|| {
        let mut archive = Archive::new(&mut unpacked);
        let members = archive.entries().map_err(|error| error.to_string())?;
        list_members(members, location)
    });
    if unpacked.limit() == 0 {
        return Err(Error::TooLarge { path: path.into(), allowed });
    }
    into_collection(path, files, options)
}

/// The largest decompressed size of an archive of `length` bytes.
pub(super) fn max_unpacked_bytes(length: u64) -> u64 {
    ALWAYS_ALLOWED_BYTES.saturating_add(length.saturating_mul(MAX_RATIO))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| trueshot::Error::Read { path: path.into(), source }.into())
}

/// The members that are files, and those whose names are not UTF-8; or an error.
type ArchiveMembers = std::result::Result<(Vec<(String, ImageLocation)>, Vec<Skipped>), String>;

fn list_members<R: Read>(
    members: tar::Entries<'_, R>,
    mut location: impl FnMut(&mut tar::Entry<'_, R>) -> std::result::Result<ImageLocation, String>,
) -> ArchiveMembers {
    let (mut files, mut skipped) = (Vec::new(), Vec::new());
    for member in members {
        let mut member = member.map_err(|error| error.to_string())?;
        if !matches!(member.header().entry_type(), EntryType::Regular | EntryType::Continuous) {
            continue;
        }
        let (name, is_utf8) = match paths::utf8_name(&member.path_bytes()) {
            Ok(name) => (name, true),
            Err(escaped) => (escaped, false),
        };
        let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.iter().any(|part| paths::is_hidden(part)) {
            continue;
        }
        let item = parts.join("/");
        match is_utf8 {
            true => files.push((item, location(&mut member)?)),
            false => skipped.push(Skipped { item, class: None, reason: Unreadable::NotUtf8 }),
        }
    }
    Ok((files, skipped))
}

fn into_collection(
    path: &Path,
    files: Option<ArchiveMembers>,
    options: SourceOptions<'_>,
) -> Result<Collection> {
    let bad = |problem| Error::BadArchive { path: path.into(), problem };
    let found = files.unwrap_or_else(|| Err("its contents are inconsistent".into()));
    let (files, skipped) = found.map_err(bad)?;
    let mut collection = paths::collect(path, files, options)?;
    collection.skipped.extend(skipped);
    collection.skipped.sort_by(|a, b| a.item.cmp(&b.item));
    Ok(collection)
}

/// Reads the bytes of a member.
pub(super) fn read(path: &Path, offset: u64, length: u64) -> Result<Vec<u8>, Unreadable> {
    let refused = |error: std::io::Error| Unreadable::File(error.to_string());
    if length > MAX_FILE_BYTES {
        return Err(Unreadable::FileSize(length));
    }
    let mut file = File::open(path).map_err(refused)?;
    file.seek(SeekFrom::Start(offset)).map_err(refused)?;
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(length).read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}
