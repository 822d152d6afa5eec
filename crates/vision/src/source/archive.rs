//! Images in a tar archive: plain ([`list`]), whose members (the files in it) are read in place, or compressed with
//! gzip ([`list_gzip`]), which is decompressed into memory once. Archives with other compressions must be unpacked
//! first.
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

/// Decompressed bytes allowed per byte of the archive; images hardly compress, so more would be suspicious.
const MAX_RATIO: u64 = 64;
/// The block size of a tar archive.
const BLOCK_BYTES: u64 = 512;
/// Decompressed bytes allowed in addition (64 MiB), because small archives may compress well.
const ALWAYS_ALLOWED_BYTES: u64 = 64 << 20;

/// Lists the images of a tar archive.
pub(super) fn list(path: &Path, options: SourceOptions<'_>) -> Result<Collection> {
    let (file, length) = open(path)?;
    let mut archive = Archive::new(file);
    let location = |member: &mut tar::Entry<'_, File>| {
        Ok(ImageLocation::Range { offset: member.raw_file_position(), length: member.size() })
    };
    // Seeking over the members reads only the headers. The reader may panic on invalid input.
    let files = trueshot::guard::caught(|| {
        let members = archive.entries_with_seek().map_err(|error| error.to_string())?;
        list_members(members, Some(length), location)
    });
    into_collection(path, files, options)
}

/// Lists the images of a tar archive that is compressed with gzip, and reads them into memory.
pub(super) fn list_gzip(path: &Path, options: SourceOptions<'_>) -> Result<Collection> {
    let (file, length) = open(path)?;
    let allowed = max_unpacked_bytes(length);
    let mut unpacked = MultiGzDecoder::new(BufReader::new(file)).take(allowed);
    let location = |member: &mut tar::Entry<'_, &mut std::io::Take<MultiGzDecoder<BufReader<File>>>>| {
        let mut bytes = Vec::new();
        // Grows with the bytes that are there: the size in the header may be false.
        member.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok(ImageLocation::Memory(bytes.into()))
    };
    let files = trueshot::guard::caught(|| {
        let mut archive = Archive::new(&mut unpacked);
        let members = archive.entries().map_err(|error| error.to_string())?;
        list_members(members, None, location)
    });
    // At the limit the stream just ends, which the reader reports as truncated; this error says why.
    if unpacked.limit() == 0 {
        return Err(Error::TooLarge { path: path.into(), allowed });
    }
    into_collection(path, files, options)
}

/// The largest decompressed size of an archive of `length` bytes.
pub(super) fn max_unpacked_bytes(length: u64) -> u64 {
    ALWAYS_ALLOWED_BYTES.saturating_add(length.saturating_mul(MAX_RATIO))
}

/// Opens a file, and returns its length too.
fn open(path: &Path) -> Result<(File, u64)> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (length, file) = opened.map_err(|source| trueshot::Error::Read { path: path.into(), source })?;
    Ok((file, length))
}

/// The regular members, each with its name and location, and those that are skipped; or a message for the user.
type ArchiveMembers = std::result::Result<(Vec<(String, ImageLocation)>, Vec<Skipped>), String>;

/// Lists the members of an archive; `location` makes the location of a member. `length` is the length of the archive if
/// the reader seeks over members: it then does not notice that a member ends after the end of the file. Otherwise
/// `length` is `None`.
fn list_members<R: Read>(
    members: tar::Entries<'_, R>,
    length: Option<u64>,
    mut location: impl FnMut(&mut tar::Entry<'_, R>) -> std::result::Result<ImageLocation, String>,
) -> ArchiveMembers {
    let (mut files, mut skipped) = (Vec::new(), Vec::new());
    for member in members {
        let mut member = member.map_err(|error| error.to_string())?;
        if length.is_some_and(|length| stored_end(&member).is_none_or(|end| end > length)) {
            return Err("a member is truncated".into());
        }
        if !matches!(member.header().entry_type(), EntryType::Regular | EntryType::Continuous) {
            continue;
        }
        let (name, is_utf8) = match paths::utf8_name(&member.path_bytes()) {
            Ok(name) => (name, true),
            Err(escaped) => (escaped, false),
        };
        let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        // `..` starts with a dot, but is not hidden: a name that leads out of the archive is reported.
        let leads_out = parts.contains(&"..");
        if !leads_out && parts.iter().any(|part| paths::is_hidden(part)) {
            continue;
        }
        let item = parts.join("/");
        let reason = if leads_out {
            Some(Unreadable::OutsideArchive)
        } else if !is_utf8 {
            Some(Unreadable::NotUtf8)
        } else if member.size() > MAX_FILE_BYTES {
            Some(Unreadable::FileSize(member.size()))
        } else {
            paths::skip_reason(&item)
        };
        match reason {
            Some(reason) => skipped.push(Skipped { item, class: None, reason }),
            None => files.push((item, location(&mut member)?)),
        }
    }
    Ok((files, skipped))
}

/// Where a member ends in the archive, which pads members to whole blocks; `None` for an impossible size.
fn stored_end<R: Read>(member: &tar::Entry<'_, R>) -> Option<u64> {
    let stored = match member.header().entry_type() {
        // The size of the file includes holes, which are not stored.
        EntryType::GNUSparse => member.header().entry_size().ok()?,
        _ => member.size(),
    };
    member.raw_file_position().checked_add(stored.checked_next_multiple_of(BLOCK_BYTES)?)
}

/// Makes the collection of the listed members.
fn into_collection(
    path: &Path,
    files: Option<ArchiveMembers>,
    options: SourceOptions<'_>,
) -> Result<Collection> {
    let bad = |problem| Error::BadArchive { path: path.into(), problem };
    // `None`: the reader panicked.
    let members = files.unwrap_or_else(|| Err("its contents are inconsistent".into()));
    let (files, skipped) = members.map_err(bad)?;
    paths::collect(path, files, skipped, options)
}

/// Reads the bytes of a member of a plain archive, `length` bytes from `offset` on.
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
