//! Property tests of the readers of embeddings files on damaged and hostile bytes: a file is read or refused, without a
//! panic and without allocating the sizes that a header merely claims.
//!
//! The allocator of this test program has a limit beyond which it aborts the process, so a reader that trusts a claimed
//! size fails.

mod samples;

use std::alloc::System;
use std::sync::LazyLock;

use cap::Cap;
use proptest::prelude::*;
use proptest::sample::Index;
use samples::{Sample, npy, parquet, safetensors};
use trueshot::embeddings::{Embeddings, inspect};
use trueshot::error::Error;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 512 << 20);

/// Small files of every format as (extension, bytes); for `.npy`, features and labels are separate files.
static FILES: LazyLock<Vec<(&'static str, Vec<u8>)>> = LazyLock::new(|| {
    let sample = Sample::new(12, 3);
    let whole = sample.every_form().into_iter().map(|(_, extension, bytes)| (extension, bytes));
    let parts = [npy::features(&sample), npy::fortran_features(&sample), npy::labels(&sample)];
    whole.chain(parts.map(|bytes| ("npy", bytes))).collect()
});

/// One random change of a file.
#[derive(Debug, Clone)]
enum Damage {
    FlipBit(Index, u8),
    SetByte(Index, u8),
    Truncate(Index),
    /// A number, of 8 bytes or of 4, written over the bytes at an index, where a length may be stored.
    Splice(Index, u64, bool),
    /// Bytes copied over others: source, destination, count.
    CopyWithin(Index, Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    let lengths = prop_oneof![
        Just(0u64),
        Just(u64::MAX),
        Just(i64::MAX as u64),
        Just(u64::from(u32::MAX)),
        Just(i32::MAX as u64),
        Just(1 << 40),
        any::<u64>(),
        0..100_000u64,
    ];
    prop_oneof![
        3 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Damage::FlipBit(at, bit)),
        3 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::SetByte(at, byte)),
        1 => any::<Index>().prop_map(Damage::Truncate),
        3 => (any::<Index>(), lengths, any::<bool>()).prop_map(|(at, n, wide)| Damage::Splice(at, n, wide)),
        1 => (any::<Index>(), any::<Index>(), 1..64u8).prop_map(|(from, to, n)| Damage::CopyWithin(from, to, n)),
        1 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, b)| Damage::Insert(at, b)),
        1 => (any::<Index>(), 1..32u8).prop_map(|(at, n)| Damage::Remove(at, n)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Damage::FlipBit(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Damage::SetByte(at, byte) => bytes[at.index(length)] = *byte,
            Damage::Truncate(at) => bytes.truncate(at.index(length)),
            Damage::Splice(at, number, wide) => {
                let at = at.index(length);
                let end = length.min(at + if *wide { 8 } else { 4 });
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
            Damage::CopyWithin(from, to, count) => {
                let (from, to) = (from.index(length), to.index(length));
                let count = usize::from(*count).min(length - from.max(to));
                bytes.copy_within(from..from + count, to);
            }
            Damage::Insert(at, more) => {
                let at = at.index(length);
                bytes.splice(at..at, more.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = at.index(length);
                bytes.drain(at..length.min(at + usize::from(*count)));
            }
        }
    }
}

/// Reads arbitrary bytes; embeddings that are accepted must also be usable.
fn read(bytes: Vec<u8>, extension: &str) {
    if let Ok(mut embeddings) = Embeddings::read_bytes(bytes, extension) {
        let finite = embeddings.check().is_ok();
        let found = inspect(&embeddings);
        assert_eq!(finite, found.fingerprint.is_some());
        assert_eq!(found.rows, embeddings.labels().len());
        (0..embeddings.len()).for_each(|row| assert_eq!(embeddings.item(row).is_some(), found.has_items));
    }
}

/// 10,000 cases, or `PROPTEST_CASES`: `PROPTEST_CASES=10000000 cargo test --release --test untrusted_bytes` runs all night.
fn cases() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases.unwrap_or(10_000)) }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn damaged_files_of_every_format_are_read_or_refused(
        which in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let (extension, bytes) = which.get(&FILES);
        let mut bytes = bytes.clone();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        read(bytes, extension);
    }

    #[test]
    fn files_damaged_in_their_header_or_footer_are_read_or_refused(
        which in any::<Index>(),
        damages in prop::collection::vec((any::<Index>(), any::<bool>(), any::<u8>()), 1..4),
    ) {
        let (extension, bytes) = which.get(&FILES);
        let mut bytes = bytes.clone();
        for (at, front, byte) in &damages {
            let range = bytes.len().min(400);
            let at = at.index(range);
            let at = if *front { at } else { bytes.len() - 1 - at };
            bytes[at] = *byte;
        }
        read(bytes, extension);
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for extension in ["safetensors", "npy", "npz", "parquet", "arrow"] {
            prop_assert!(Embeddings::read_bytes(bytes.clone(), extension).is_err());
        }
    }
}

#[test]
fn truncated_files_of_every_format_are_refused() {
    for (extension, bytes) in FILES.iter() {
        let step = (bytes.len() / 97).max(1);
        for length in (0..bytes.len()).step_by(step) {
            let truncated = Embeddings::read_bytes(bytes[..length].to_vec(), extension);
            // An Arrow stream may end after any message: it has fewer rows, but complete ones.
            let has_fewer_rows =
                *extension == "arrow" && truncated.as_ref().is_ok_and(|rows| rows.len() < 12);
            assert!(truncated.is_err() || has_fewer_rows, "{extension} of {} at {length}", bytes.len());
        }
    }
}

#[test]
fn a_safetensors_header_with_false_sizes_is_refused() {
    let tensors =
        |shape: Vec<usize>| [("features", "F32", shape, &[0u8; 32][..]), ("labels", "U8", vec![2], &[0, 1])];
    for shape in [vec![1 << 40, 1 << 20], vec![usize::MAX, 2], vec![2, 5], vec![8], vec![2, 2, 2], vec![]] {
        let bytes = safetensors::assemble(serde_json::json!({}), &tensors(shape.clone()));
        assert!(Embeddings::read_bytes(bytes, "safetensors").is_err(), "{shape:?}");
    }
    let good = safetensors::assemble(serde_json::json!({}), &tensors(vec![2, 4]));
    assert!(Embeddings::read_bytes(good.clone(), "safetensors").is_ok());
    for header in [u64::MAX, 1 << 40, 100_000_001, good.len() as u64 - 8, good.len() as u64] {
        let mut changed = good.clone();
        changed[..8].copy_from_slice(&header.to_le_bytes());
        assert!(Embeddings::read_bytes(changed, "safetensors").is_err(), "{header}");
    }
}

#[test]
fn unsupported_feature_types_are_refused_with_their_name() {
    for (dtype, bytes) in [("F4", 4), ("F6_E2M3", 6), ("F8_E4M3", 8), ("I8", 8), ("C64", 64)] {
        let data = vec![0; bytes];
        let tensors = [("features", dtype, vec![2, 4], &data[..]), ("labels", "U8", vec![2], &[0, 1][..])];
        let refused =
            Embeddings::read_bytes(safetensors::assemble(serde_json::json!({}), &tensors), "safetensors");
        let refused = refused.err().expect("refused").to_string();
        assert!(refused.contains(dtype), "{refused}");
    }
}

#[test]
fn features_without_rows_or_columns_are_refused_as_empty() {
    for shape in [vec![1 << 40, 0], vec![0, 1 << 40], vec![0, 0]] {
        let tensors = [("features", "F32", shape, &[][..]), ("labels", "U8", vec![0], &[][..])];
        let refused =
            Embeddings::read_bytes(safetensors::assemble(serde_json::json!({}), &tensors), "safetensors");
        assert!(matches!(refused.err(), Some(Error::Empty)));
    }
}

#[test]
fn a_parquet_page_that_claims_gigabytes_is_refused() {
    let sample = Sample::new(12, 3);
    for (form, extension, bytes) in
        sample.every_form().into_iter().filter(|(_, extension, _)| *extension == "parquet")
    {
        // A page header starts with its type and two sizes, which are small here; 0x15 starts each field.
        let headers = (0..bytes.len() - 6)
            .filter(|&at| bytes[at] == 0x15 && bytes[at + 2] == 0x15 && bytes[at + 1] <= 6);
        for at in headers {
            let mut changed = bytes.clone();
            // The first size becomes two gigabytes; the bytes after it move back.
            changed.splice(at + 3..at + 4, [0xfe, 0xff, 0xff, 0xff, 0x0f]);
            assert!(Embeddings::read_bytes(changed, extension).is_err(), "{form} at {at}");
        }
    }
}

#[test]
fn delta_encoded_strings_are_refused_with_their_column() {
    let refused = Embeddings::read_bytes(parquet::delta_strings(&Sample::new(12, 3)), "parquet");
    let refused = refused.err().expect("refused").to_string();
    assert!(refused.contains("'label' is encoded as DELTA_BYTE_ARRAY"), "{refused}");
}

#[test]
fn a_list_of_lengths_that_claims_more_than_its_page_is_refused() {
    let sample = Sample::new(12, 3);
    let forms = sample.every_form().into_iter().filter(|(form, _, _)| form.contains("delta lengths"));
    for (form, extension, bytes) in forms {
        // The header of the delta-encoded lengths: blocks of 128 values in 4 miniblocks, 12 values.
        let header = [0x80, 0x01, 4, 12];
        let at = bytes.windows(4).position(|four| four == header).expect("delta-encoded lengths");
        let mut changed = bytes.clone();
        changed[at + 3] = 100;
        assert!(Embeddings::read_bytes(changed, extension).is_err(), "{form}");
    }
}

#[test]
fn a_compressed_arrow_buffer_that_claims_a_terabyte_is_refused() {
    let sample = Sample::new(200, 8);
    let forms = sample.every_form().into_iter().filter(|(form, _, _)| form.contains("zstd f32 list"));
    for (form, extension, mut bytes) in forms.filter(|(_, extension, _)| *extension == "arrow") {
        // The uncompressed length is stored before the magic number of the zstd frame.
        let magic = [0x28, 0xb5, 0x2f, 0xfd];
        let at = bytes.windows(4).position(|four| four == magic).expect("a compressed buffer");
        bytes[at - 8..at].copy_from_slice(&(1i64 << 40).to_le_bytes());
        let refused = Embeddings::read_bytes(bytes, extension).err();
        assert!(matches!(refused, Some(Error::TooLarge { .. })), "{form}");
    }
}
