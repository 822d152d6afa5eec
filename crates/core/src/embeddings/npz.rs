//! Reads embeddings from NumPy's `.npz` format, a zip archive of `.npy` arrays: features, labels, class names and item
//! names under the usual names of their arrays.
//!
//! Start with [`read`]. The arrays of `np.savez` are stored: they are slices of the mapped file. Those of
//! `np.savez_compressed` are deflated: the total size that they claim to decompress to must be plausible for the size
//! of the file, and no more than claimed is decompressed.
//!
//! The CRC-32 of an array is checked when it is read. It covers the array but not the central directory of the archive,
//! so the names in the central directory must match those in the local headers.

use std::io::{Cursor, Read};

use bytes::Bytes;
use zip::{CompressionMethod, ZipArchive};

use super::guard::guarded;
use super::npy::NpyArray;
use super::source::Source;
use super::{Items, Parts};
use crate::arrays;
use crate::error::{Error, Result};

const FORMAT: &str = "npz";
/// Names of the array of features, by preference.
const FEATURES: [&str; 4] = ["x", "X", "features", "embeddings"];
/// Names of the array of labels, by preference.
const LABELS: [&str; 3] = ["y", "labels", "Y"];

/// The largest compression factor of deflate (about 1032 : 1 by the format), which bounds the memory that is reserved
/// in advance.
const MAX_DEFLATE_FACTOR: u64 = 1032;

/// Reads the arrays of features and labels, and those of classes and item names if there are any. Values are not
/// checked.
pub(crate) fn read(source: &Source) -> Result<Parts> {
    let mut archive = guarded(source, FORMAT, || Archive::open(source))?;
    let features = archive.first_of(&FEATURES)?;
    let labels = archive.first_of(&LABELS)?;
    let classes = archive.member("classes")?;
    let items = archive.member("items")?;

    // `strings` reads an optional list of strings; `what` names it in messages.
    let array = |bytes: Bytes| NpyArray::parse(source, bytes);
    let strings = |bytes: Option<Bytes>, what| bytes.map(|bytes| array(bytes)?.strings(what)).transpose();
    let features = array(features)?.features()?;
    let labels = array(labels)?.labels()?;
    let labels = match strings(classes, "classes")? {
        Some(classes) => labels.with_classes(classes).map_err(|problem| source.malformed(FORMAT, problem))?,
        None => labels.without_classes(),
    };
    let items = strings(items, "items")?.map(Items::from_names);
    if let Some(items) = items.as_ref().filter(|items| items.len() != features.rows()) {
        let problem = format!("{} item names for {} rows", items.len(), features.rows());
        return Err(source.malformed(FORMAT, problem));
    }
    Ok(Parts { features, labels, items, backbone: None })
}

/// Reads the first array that has one of the names.
pub(crate) fn read_array(source: &Source, names: &[&str]) -> Result<arrays::Array> {
    let mut archive = guarded(source, FORMAT, || Archive::open(source))?;
    Ok(NpyArray::parse(source, archive.first_of(names)?)?.into_plain())
}

/// A zip archive whose central directory matches its local headers.
struct Archive<'a> {
    source: &'a Source,
    zip: ZipArchive<Cursor<Bytes>>,
    /// The total decompressed size of the members read so far, in bytes.
    unpacked: u64,
}

impl<'a> Archive<'a> {
    fn open(source: &'a Source) -> Result<Self> {
        let zip = ZipArchive::new(Cursor::new(source.bytes.clone()))
            .map_err(|problem| source.malformed(FORMAT, problem))?;
        let mut archive = Archive { source, zip, unpacked: 0 };
        archive.check_names()?;
        Ok(archive)
    }

    /// Compares the names in the central directory with those in the local headers, so that an optional array whose
    /// name is damaged in the directory is not taken for a missing one.
    fn check_names(&mut self) -> Result<()> {
        for index in 0..self.zip.len() {
            let member =
                self.zip.by_index_raw(index).map_err(|problem| self.source.malformed(FORMAT, problem))?;
            if local_name(&self.source.bytes, member.header_start()) != Some(member.name_raw()) {
                let name = printable_name(member.name_raw());
                let problem =
                    format!("the directory lists a member '{name}', but the member has another name");
                return Err(self.source.malformed(FORMAT, problem));
            }
        }
        Ok(())
    }

    /// The bytes of the first array that has one of the names.
    fn first_of(&mut self, names: &[&str]) -> Result<Bytes> {
        for name in names {
            if let Some(bytes) = self.member(name)? {
                return Ok(bytes);
            }
        }
        let problem = format!("it has no array named {}", names.join(" or "));
        Err(self.source.malformed(FORMAT, problem))
    }

    /// The bytes of the array `name`, if there is one.
    fn member(&mut self, name: &str) -> Result<Option<Bytes>> {
        let source = self.source;
        let Some(index) = self.zip.index_for_name(&format!("{name}.npy")) else { return Ok(None) };
        guarded(source, FORMAT, || self.unpack(index)).map(Some)
    }

    /// The bytes of a member, decompressed if necessary and compared with its checksum.
    fn unpack(&mut self, index: usize) -> Result<Bytes> {
        let source = self.source;
        let malformed = |problem: &dyn std::fmt::Display| source.malformed(FORMAT, problem);
        let member = self.zip.by_index(index).map_err(|problem| malformed(&problem))?;
        let (claimed, packed) = (member.size(), member.compressed_size());
        match member.compression() {
            // A slice of the file: its checksum is compared here.
            CompressionMethod::Stored => {
                let bytes = stored(source, member.data_start(), packed)?;
                match crc32fast::hash(&bytes) == member.crc32() {
                    true => Ok(bytes),
                    false => Err(source.damaged(format!("array '{}'", printable_name(member.name_raw())))),
                }
            }
            // Read through the zip crate, which compares the checksum at the end.
            CompressionMethod::Deflated => {
                self.unpacked = self.unpacked.saturating_add(claimed);
                source.allow(self.unpacked)?;
                inflate(member, claimed, packed).map_err(|problem| malformed(&problem))
            }
            method => Err(malformed(&format!(
                "a member is compressed with {method}; supported: stored and deflated"
            ))),
        }
    }
}

/// The name of a member for messages, with invisible characters escaped.
fn printable_name(name: &[u8]) -> String {
    crate::visible::visible(&String::from_utf8_lossy(name))
}

/// The name in the local header in front of a member; `None` if the header is outside the file. The header has 30 fixed
/// bytes, of which bytes 26 and 27 are the length of the name that follows.
fn local_name(bytes: &[u8], header_start: u64) -> Option<&[u8]> {
    let header = bytes.get(usize::try_from(header_start).ok()?..)?;
    let (fixed, rest) = header.split_first_chunk::<30>()?;
    rest.get(..usize::from(u16::from_le_bytes([fixed[26], fixed[27]])))
}

/// The bytes of a member that is not compressed, as a slice of the file; an error if it is not inside the file.
fn stored(source: &Source, start: Option<u64>, length: u64) -> Result<Bytes> {
    let range = start.and_then(|start| {
        let end = usize::try_from(start.checked_add(length)?).ok()?;
        Some(usize::try_from(start).ok()?..end)
    });
    range
        .filter(|range| range.end <= source.bytes.len())
        .map(|range| source.bytes.slice(range))
        .ok_or_else(|| -> Error { source.malformed(FORMAT, "a member lies outside the file") })
}

/// Decompresses a member, which must have exactly the claimed size.
fn inflate(member: impl Read, claimed: u64, packed: u64) -> std::io::Result<Bytes> {
    let capacity = claimed.min(packed.saturating_mul(MAX_DEFLATE_FACTOR));
    let mut unpacked = Vec::with_capacity(capacity as usize);
    // One byte more than claimed, so that a longer member is noticed and the checksum at the end is compared.
    member.take(claimed.saturating_add(1)).read_to_end(&mut unpacked)?;
    match unpacked.len() as u64 == claimed {
        true => Ok(unpacked.into()),
        false => {
            Err(std::io::Error::other(format!("a member claims {claimed} bytes but has a different size")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::SimpleFileOptions;

    use super::super::Embeddings;
    use super::super::npy::tests::array;
    use super::*;

    fn archive(members: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in members {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn members() -> Vec<(&'static str, Vec<u8>)> {
        let values: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        vec![
            ("features.npy", array("<f4", false, "(2, 2)", &values)),
            ("y.npy", array("|u1", false, "(2,)", &[1, 0])),
            ("classes.npy", array("|S3", false, "(2,)", b"owlant")),
            ("items.npy", array("|S1", false, "(2,)", b"ab")),
        ]
    }

    #[test]
    fn stored_and_deflated_arrays_are_read_alike() {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let embeddings = Embeddings::read_bytes(archive(&members(), method), "npz").unwrap();
            assert_eq!(*embeddings.all_rows(), [1.0, 2.0, 3.0, 4.0]);
            assert_eq!((embeddings.labels(), embeddings.classes()[1].as_str()), ([1, 0].as_slice(), "ant"));
            assert_eq!(embeddings.item(1), Some("b"));
        }
    }

    #[test]
    fn the_error_about_a_missing_array_names_it() {
        let bytes = archive(&members()[..1], CompressionMethod::Stored);
        let Err(problem) = Embeddings::read_bytes(bytes, "npz") else { panic!() };
        assert!(problem.to_string().contains("y or labels or Y"), "{problem}");
    }

    #[test]
    fn a_decompression_bomb_is_refused_before_it_is_decompressed() {
        let bomb = vec![0; 200 << 20];
        let bytes = archive(&[("x.npy", bomb)], CompressionMethod::Deflated);
        assert!(matches!(Embeddings::read_bytes(bytes, "npz"), Err(Error::TooLarge { .. })));
    }
}
