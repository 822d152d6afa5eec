//! Tests that damage to files with checksums is detected, by flipping every bit of small files, one at a time.
//!
//! The checksums of `.npz` and Parquet cover the data, not every byte of the headers around it. A flip elsewhere may
//! be undetected only if the contents that are read are still the same.

use std::ops::Range;

use crate::samples::{Sample, contents, npy, npz};
use parquet::file::reader::{FileReader, SerializedFileReader};
use trueshot::Result;
use trueshot::arrays;
use trueshot::embeddings::Embeddings;
use trueshot::error::Error;

fn read(bytes: Vec<u8>, extension: &str) -> Result<Embeddings> {
    let mut embeddings = Embeddings::read_bytes(bytes, extension)?;
    embeddings.check()?;
    Ok(embeddings)
}

/// All copies of the bytes with one bit of a range flipped, with the index of the changed byte.
fn flips(bytes: &[u8], range: Range<usize>) -> impl Iterator<Item = (usize, Vec<u8>)> {
    range.flat_map(|at| (0..8).map(move |bit| (at, bit))).map(|(at, bit)| {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1 << bit;
        (at, damaged)
    })
}

/// The range of bytes at which a part is stored in a file.
fn range_of(part: &[u8], bytes: &[u8]) -> Range<usize> {
    let start = bytes.windows(part.len()).position(|window| window == part).expect("the part is stored");
    start..start + part.len()
}

#[test]
fn every_flipped_bit_of_a_stored_array_is_refused() {
    let sample = Sample::new(12, 3);
    let members = [
        ("x.npy", npy::features(&sample)),
        ("y.npy", npy::labels(&sample)),
        ("items.npy", npy::strings(&sample.items)),
    ];
    let bytes = npz::archive(&members, false);
    for (name, array) in &members {
        for (at, damaged) in flips(&bytes, range_of(array, &bytes)) {
            match Embeddings::read_bytes(damaged, "npz") {
                Err(Error::Damaged { what, .. }) => assert_eq!(what, format!("array '{name}'")),
                other => panic!("{name}, byte {at}: {:?}", other.err()),
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_in_an_archive_is_refused_or_changes_nothing() {
    let sample = Sample::new(12, 3);
    for (form, extension, bytes) in npz::forms(&sample) {
        let expected = contents(&read(bytes.clone(), extension).unwrap());
        for (at, damaged) in flips(&bytes, 0..bytes.len()) {
            if let Ok(found) = read(damaged, extension) {
                assert_eq!(contents(&found), expected, "{form}, byte {at} of {}", bytes.len());
            }
        }
    }
}

#[test]
fn damage_to_a_published_image_array_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pictures.npz");
    let array = npy::array("|u1", "False", "(2, 2, 2, 3)", &[7; 24]);
    let bytes = npz::archive(&[("images.npy", array)], false);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(arrays::from_npz(&path, &["images"]).unwrap().data[..], [7; 24]);
    for (_, damaged) in flips(&bytes, range_of(&[7; 24], &bytes)) {
        std::fs::write(&path, damaged).unwrap();
        assert!(matches!(arrays::from_npz(&path, &["images"]), Err(Error::Damaged { .. })));
    }
}

/// Written by PyArrow 26 with `write_page_checksum=True`: both versions of data pages, plain and compressed.
const PYARROW: [&[u8]; 4] = [
    include_bytes!("../pyarrow/page-checksums-v1-none.parquet"),
    include_bytes!("../pyarrow/page-checksums-v1-snappy.parquet"),
    include_bytes!("../pyarrow/page-checksums-v2-none.parquet"),
    include_bytes!("../pyarrow/page-checksums-v2-snappy.parquet"),
];

#[test]
fn a_flipped_bit_in_a_page_with_a_checksum_is_refused_or_changes_nothing() {
    for bytes in PYARROW {
        let expected = contents(&read(bytes.to_vec(), "parquet").unwrap());
        assert_eq!(expected.0, Sample::new(12, 3).values);
        let file = SerializedFileReader::new(bytes::Bytes::from_static(bytes)).unwrap();
        let chunks = file.metadata().row_groups().iter().flat_map(|group| group.columns());
        let (mut tried, mut by_checksum) = (0, 0);
        for chunk in chunks {
            let (start, length) = chunk.byte_range();
            for (at, damaged) in flips(bytes, start as usize..(start + length) as usize) {
                tried += 1;
                match read(damaged, "parquet") {
                    Err(Error::Damaged { what, .. }) => {
                        by_checksum += 1;
                        assert!(what.contains(&chunk.column_path().string()), "{what}");
                    }
                    Err(_) => {}
                    Ok(found) => assert_eq!(contents(&found), expected, "byte {at} of {}", bytes.len()),
                }
            }
        }
        assert!(by_checksum > tried / 4, "{by_checksum} of {tried} flips were detected by a checksum");
    }
}

#[test]
fn pages_without_checksums_are_read() {
    let sample = Sample::new(12, 3);
    for (form, extension, bytes) in crate::samples::parquet::forms(&sample) {
        assert!(read(bytes, extension).is_ok(), "{form}");
    }
}
