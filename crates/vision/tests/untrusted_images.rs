//! Tests of damaged images, archives and lists: they are read or refused, without a panic, and without allocating what
//! a header claims.
//!
//! The allocator of this test aborts the process beyond a limit, so a decoder that trusts a header fails.

mod image_kinds;

use std::alloc::System;
use std::sync::LazyLock;

use cap::Cap;
use proptest::prelude::*;
use proptest::sample::Index;
use trueshot_vision::pickle::{Pickle, Value};
use trueshot_vision::split::Split;
use trueshot_vision::{Channels, Collection, DecodedImage, SourceOptions};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 512 << 20);

static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let all = image_kinds::coloured().into_iter().chain(image_kinds::grey()).map(|(_, bytes)| bytes);
    all.chain([
        image_kinds::with_orientation(6),
        image_kinds::cmyk_jpeg(1, 2, 3, 4),
        image_kinds::claiming(70_000, 70_000),
    ])
    .collect()
});

/// Pickles of data sets, in every protocol.
static PICKLES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let forms = ["mini-0", "mini-2", "mini-4", "mini-5", "mini-python2"];
    let caches = forms.map(|form| format!("{form}/mini-imagenet-cache-train.pkl"));
    let others = ["tiered/train_images_png.pkl", "tiered/train_labels.pkl", "cifar-100-python/meta"];
    let names = caches.into_iter().chain(others.map(String::from));
    names.map(|name| std::fs::read(format!("tests/published/{name}")).unwrap()).collect()
});

/// Reads a value as deeply as a reader of data sets would.
fn read_parts(value: Value<'_>, depth: usize) {
    let _ =
        (value.integer(), value.float(), value.text(), value.bytes(), value.whole_numbers(), value.kind());
    if depth == 0 {
        return;
    }
    value.items().into_iter().flatten().for_each(|item| read_parts(item, depth - 1));
    value.pairs().into_iter().flatten().for_each(|(key, value)| {
        read_parts(key, 0);
        read_parts(value, depth - 1);
    });
}

/// The bytes with some values changed, truncated, and with a number spliced in where a length might be.
fn damaged(
    bytes: &[u8],
    changes: &[(Index, u8)],
    cut: Option<Index>,
    splice: Option<(Index, u32)>,
) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (index, byte) in changes {
        let position = index.index(bytes.len());
        bytes[position] = *byte;
    }
    if let Some((index, number)) = splice {
        let start = index.index(bytes.len());
        let end = bytes.len().min(start + 4);
        bytes[start..end].copy_from_slice(&number.to_be_bytes()[..end - start]);
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes
}

/// Bytes to set, a position to truncate at, and a number to splice in.
type Damage = (Vec<(Index, u8)>, Option<Index>, Option<(Index, u32)>);

fn damage() -> impl Strategy<Value = Damage> {
    let number = prop_oneof![Just(u32::MAX), Just(i32::MAX as u32), Just(0), any::<u32>(), 0..70_000_u32];
    (
        prop::collection::vec((any::<Index>(), any::<u8>()), 0..8),
        prop::option::weighted(0.2, any::<Index>()),
        prop::option::weighted(0.5, (any::<Index>(), number)),
    )
}

fn archive() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (number, (name, bytes)) in image_kinds::coloured().into_iter().enumerate() {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, format!("class{}/{number}-{name}", number % 2), &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

/// The same data in ZIP archives: stored, and deflated.
static ZIPS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated].map(|method| {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (number, (name, bytes)) in image_kinds::coloured().into_iter().enumerate() {
            archive.start_file(format!("class{}/{number}-{name}", number % 2), options).unwrap();
            std::io::Write::write_all(&mut archive, &bytes).unwrap();
        }
        archive.finish().unwrap().into_inner()
    })
});

fn read_all(name: &str, bytes: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let Ok(collection) = Collection::open(&path, SourceOptions::default()) else { return };
    for entry in collection.entries() {
        let _ = collection.read_image(entry, Channels::Colour);
    }
}

/// CIFAR-100 in one of its published forms.
#[derive(Clone, Copy)]
struct Cifar {
    folder: &'static str,
    files: &'static [&'static str],
}

const CIFAR: [Cifar; 2] = [
    Cifar { folder: "cifar-100-python", files: &["meta", "train", "test"] },
    Cifar {
        folder: "cifar-100-binary",
        files: &["train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"],
    },
];

impl Cifar {
    fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(format!("tests/published/{}/{file}", self.folder)).unwrap()
    }

    /// Reads the data set with one file replaced: items, classes and pixels.
    fn read_with(&self, file: &str, bytes: &[u8]) -> Option<Vec<(String, String, Vec<u8>)>> {
        let folder = tempfile::tempdir().unwrap();
        self.files.iter().for_each(|name| std::fs::write(folder.path().join(name), self.read(name)).unwrap());
        std::fs::write(folder.path().join(file), bytes).unwrap();
        let collection = Collection::open(folder.path(), SourceOptions::default()).ok()?;
        let rows = collection.entries().iter().map(|entry| {
            let pixels = collection.read_image(entry, Channels::Colour).unwrap().pixels;
            (entry.item.clone(), collection.classes()[entry.class as usize].clone(), pixels)
        });
        Some(rows.collect())
    }
}

/// Flips every bit that is not part of a pixel, and some that are.
#[test]
fn flipped_bits_of_cifars_binary_files_are_refused_or_change_one_image() {
    let form = CIFAR[1];
    for file in ["train.bin", "test.bin"] {
        let bytes = form.read(file);
        let whole = form.read_with(file, &bytes).unwrap();
        let labels = (0..bytes.len()).filter(|position| position % 3074 < 2);
        for position in labels.chain((0..bytes.len()).step_by(211)) {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[position] ^= 1 << bit;
                let Some(found) = form.read_with(file, &damaged) else { continue };
                let changed = found.iter().zip(&whole).filter(|(found, whole)| found != whole).count();
                assert!(found.len() == whole.len() && changed <= 1, "{file}, bit {bit} of byte {position}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn damaged_images_never_panic(which: Index, (changes, cut, splice) in damage()) {
        let bytes = damaged(&FILES[which.index(FILES.len())], &changes, cut, splice);
        for channels in [Channels::Colour, Channels::Grey] {
            if let Ok(image) = DecodedImage::decode(&bytes, channels) {
                prop_assert_eq!(image.pixels.len(), image.width * image.height * channels.count());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn damaged_pickles_never_panic(which: Index, (changes, cut, splice) in damage()) {
        let bytes = damaged(&PICKLES[which.index(PICKLES.len())], &changes, cut, splice);
        if let Ok(pickle) = Pickle::read(bytes.into()) {
            read_parts(pickle.value(), 3);
        }
    }

    #[test]
    fn any_instructions_as_a_pickle_never_panic(bytes in prop::collection::vec(instruction(), 0..60)) {
        if let Ok(pickle) = Pickle::read(bytes.concat().into()) {
            read_parts(pickle.value(), 3);
        }
    }
}

/// An instruction of a pickle, or rarely an invalid byte.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<&'static [u8]> = vec![
        b"(",
        b"0",
        b"1",
        b"2",
        b"N",
        b"]",
        b"}",
        b")",
        b"l",
        b"d",
        b"t",
        b"a",
        b"e",
        b"s",
        b"u",
        b"R",
        b"b",
        b".",
        b"\x85",
        b"\x86",
        b"\x87",
        b"\x88",
        b"\x93",
        b"\x94",
        b"K\x01",
        b"M\x00\x02",
        b"q\x00",
        b"h\x00",
        b"h\x01",
        b"U\x02u1",
        b"C\x01a",
        b"X\x06\x00\x00\x00latin1",
        b"\x8a\x01\xff",
        b"G\x00\x00\x00\x00\x00\x00\x00\x00",
        b"cnumpy\ndtype\n",
        b"cnumpy\nndarray\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"cnumpy.core.multiarray\nscalar\n",
        b"c_codecs\nencode\n",
        b"c__builtin__\nbytearray\n",
        b"cnumpy._core.numeric\n_frombuffer\n",
        b"S'\\x00'\n",
        b"Vabc\n",
        b"I7\n",
        b"p1\n",
        b"g1\n",
    ];
    prop_oneof![20 => prop::sample::select(known).prop_map(<[u8]>::to_vec), 1 => any::<u8>().prop_map(|byte| vec![byte])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn damaged_data_sets_never_panic(which in 0..5_usize, (changes, cut, splice) in damage()) {
        read_all("cache.pkl", &damaged(&PICKLES[which], &changes, cut, splice));
    }

    #[test]
    fn damaged_files_of_cifar_never_panic(
        binary: bool,
        which in 0..4_usize,
        (changes, cut, splice) in damage(),
        more in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let form = CIFAR[usize::from(binary)];
        let mut bytes = damaged(&form.read(form.files[which % form.files.len()]), &changes, cut, splice);
        bytes.extend(more);
        form.read_with(form.files[which % form.files.len()], &bytes);
    }

    #[test]
    fn damaged_archives_never_panic((changes, cut, splice) in damage(), packed: bool) {
        let plain = archive();
        if !packed {
            read_all("a.tar", &damaged(&plain, &changes, cut, splice));
            return Ok(());
        }
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&plain).unwrap();
        let bytes = encoder.finish().unwrap();
        read_all("a.tar.gz", &damaged(&bytes, &changes, cut, splice));
    }

    #[test]
    fn damaged_zip_archives_never_panic((changes, cut, splice) in damage(), method in 0..2_usize) {
        read_all("a.zip", &damaged(&ZIPS[method], &changes, cut, splice));
    }

    #[test]
    fn any_text_as_a_list_or_a_split_never_panics(text in "[\\PC\n\",:{}\\[\\]]{0,200}") {
        read_all("list.csv", text.as_bytes());
        read_all("list.jsonl", text.as_bytes());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("splits.json");
        std::fs::write(&path, &text).unwrap();
        let _ = Split::open(&path, "train");
    }
}

#[test]
fn an_archive_that_unpacks_to_gigabytes_is_refused() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut header = tar::Header::new_gnu();
    header.set_path("class/bomb.png").unwrap();
    header.set_size(1 << 33);
    header.set_cksum();
    encoder.write_all(header.as_bytes()).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..256).for_each(|_| encoder.write_all(&zeros).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.tgz");
    std::fs::write(&path, encoder.finish().unwrap()).unwrap();
    let refused = Collection::open(&path, SourceOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("unpacks to more than"), "{refused}");
}
