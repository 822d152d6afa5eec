//! Images in a ZIP archive. [`list`] reads the list of its members (the files in it); [`read`] reads an image, and
//! inflates it if necessary, when it is needed.
//!
//! An archive comes from outside. Names are never used as paths in the file system, no two members may share bytes or a
//! name, and the total size that the members claim is limited by the size of the file. A member that does not have the
//! size and the checksum that the archive claims is not used.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use super::archive::max_unpacked_bytes;
use super::{Collection, ImageLocation, SourceOptions, paths};
use crate::decoded_image::MAX_FILE_BYTES;
use crate::error::{Error, Result, Skipped, Unreadable};

/// The largest compression factor that deflate can reach.
const MAX_DEFLATE_FACTOR: u64 = 1032;

/// Where an image is in a ZIP archive, and what the archive claims about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZipMember {
    /// Where its bytes start in the archive.
    offset: u64,
    /// How many bytes it takes in the archive.
    packed: u64,
    /// How many bytes the image has.
    size: u64,
    crc32: u32,
    /// Whether it is compressed with deflate; otherwise it is stored as it is.
    is_deflated: bool,
}

/// Lists the images of a ZIP archive.
pub(super) fn list(path: &Path, options: SourceOptions<'_>) -> Result<Collection> {
    let failed = |source| trueshot::Error::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    // The reader may panic on invalid input.
    let members = trueshot::guard::caught(|| list_members(BufReader::new(file)));
    let members = members.unwrap_or_else(|| Err("its contents are inconsistent".into()));
    let ZipContents { files, skipped } =
        members.map_err(|problem| Error::BadArchive { path: path.into(), problem })?;
    let allowed = max_unpacked_bytes(length);
    // Other files are never unpacked.
    let images = files.iter().filter(|(item, _)| paths::skip_reason(item).is_none());
    let claimed = images.fold(0, |sum: u64, (_, member)| sum.saturating_add(member.size));
    if claimed > allowed {
        return Err(Error::TooLarge { path: path.into(), allowed });
    }
    let files = files.into_iter().map(|(item, member)| (item, ImageLocation::Zip(member))).collect();
    paths::collect(path, files, skipped, options)
}

/// The files in an archive.
#[derive(Default)]
struct ZipContents {
    files: Vec<(String, ZipMember)>,
    /// Files that cannot be used, whatever they contain.
    skipped: Vec<Skipped>,
}

/// Lists the files in an archive; `Err` is a message for the user.
fn list_members<R: Read + Seek>(reader: R) -> std::result::Result<ZipContents, String> {
    let problem = |error: zip::result::ZipError| error.to_string();
    let mut archive = ZipArchive::new(reader)
        .map_err(|error| format!("it is truncated, damaged or not a ZIP archive ({error})"))?;
    if archive.has_duplicate_names() {
        return Err("two of its files have the same name".into());
    }
    if archive.has_overlapping_entries().map_err(problem)? {
        return Err("some of its files share bytes".into());
    }
    let mut contents = ZipContents::default();
    let mut seen = HashSet::new();
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index).map_err(problem)?;
        // Windows programs write `\`.
        let name = member.name().map_err(problem)?.replace('\\', "/");
        let is_file = !member.is_dir() && !member.is_symlink();
        let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        let item = parts.join("/");
        let leads_out = parts.contains(&"..");
        // `..` starts with a dot, but is not hidden: a name that leads out of the archive is reported.
        if !is_file || !leads_out && parts.iter().any(|part| paths::is_hidden(part)) {
            continue;
        }
        if !seen.insert(item.clone()) {
            return Err(format!("two of its files are called '{}'", trueshot::report::visible(&item)));
        }
        let is_deflated = member.compression() == CompressionMethod::Deflated;
        let reason = if leads_out {
            Some(Unreadable::OutsideArchive)
        } else if paths::skip_reason(&item).is_some() {
            // `paths::collect` skips files that are not images.
            None
        } else if member.encrypted() {
            Some(Unreadable::Encrypted)
        } else {
            match member.compression() {
                CompressionMethod::Stored | CompressionMethod::Deflated => None,
                method => Some(Unreadable::Compression(method.to_string())),
            }
        };
        match reason {
            Some(reason) => contents.skipped.push(Skipped { item, class: None, reason }),
            None => {
                let offset = member.data_start().ok_or("a member has no contents")?;
                let (packed, size, crc32) = (member.compressed_size(), member.size(), member.crc32());
                contents.files.push((item, ZipMember { offset, packed, size, crc32, is_deflated }));
            }
        }
    }
    Ok(contents)
}

/// Reads the bytes of an image in the archive at `path`, and checks their number and checksum.
pub(super) fn read(path: &Path, member: &ZipMember) -> Result<Vec<u8>, Unreadable> {
    let refused = |error: std::io::Error| Unreadable::File(error.to_string());
    let ZipMember { offset, packed, size, .. } = *member;
    if size > MAX_FILE_BYTES {
        return Err(Unreadable::FileSize(size));
    }
    let mut file = File::open(path).map_err(refused)?;
    file.seek(SeekFrom::Start(offset)).map_err(refused)?;
    let contents = file.take(packed);
    // The memory that is reserved is limited by the bytes that are there, since the size may be false.
    let mut bytes = Vec::with_capacity(size.min(packed.saturating_mul(MAX_DEFLATE_FACTOR)) as usize);
    // One byte more than claimed, so that a longer member is noticed.
    match member.is_deflated {
        true => DeflateDecoder::new(contents).take(size + 1).read_to_end(&mut bytes),
        false => contents.take(size + 1).read_to_end(&mut bytes),
    }
    .map_err(refused)?;
    if bytes.len() as u64 != size {
        return Err(Unreadable::File(format!("it does not have the {size} bytes that the archive claims")));
    }
    if crc32fast::hash(&bytes) != member.crc32 {
        return Err(Unreadable::File("damaged: its checksum does not match".into()));
    }
    Ok(bytes)
}
