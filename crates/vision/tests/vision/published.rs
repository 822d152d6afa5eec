//! Tests of data sets in their published forms, written by Python (`tests/python/write_published.py`) and compared
//! pixel by pixel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use trueshot_vision::split::Split;
use trueshot_vision::{Channels, Collection, DecodedImage, Error, SourceOptions};

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published").join(name)
}

fn open(name: &str) -> Collection {
    Collection::open(path_of(name), SourceOptions::default()).unwrap()
}

fn of_split(name: &str, split: &str) -> Collection {
    Collection::open(path_of(name), SourceOptions { split: Some(split), ..SourceOptions::default() }).unwrap()
}

/// The image of a row, by the same formula as in the script.
fn expected(row: usize, height: usize, width: usize) -> DecodedImage {
    let mut pixels = Vec::new();
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        pixels.extend([0, 1, 2].map(|channel| ((row * 31 + y * 7 + x * 3 + channel * 101) % 256) as u8));
    }
    DecodedImage::new(width, height, Channels::Colour, pixels)
}

/// The class and pixels of every item.
fn contents(collection: &Collection) -> BTreeMap<String, (String, DecodedImage)> {
    let entries = collection.entries().iter().map(|entry| {
        let class = collection.classes()[entry.class as usize].clone();
        (entry.item.clone(), (class, collection.read_image(entry, Channels::Colour).unwrap()))
    });
    entries.collect()
}

#[track_caller]
fn assert_holds(collection: &Collection, rows: &[(&str, &str, usize)], height: usize, width: usize) {
    let expected = rows
        .iter()
        .map(|(item, class, row)| (item.to_string(), (class.to_string(), expected(*row, height, width))));
    assert_eq!(contents(collection), expected.collect());
}

const MINI: [(&str, &str, usize); 6] = [
    ("n01/1", "n01", 1),
    ("n01/5", "n01", 5),
    ("n02/0", "n02", 0),
    ("n02/3", "n02", 3),
    ("n03/2", "n03", 2),
    ("n03/4", "n03", 4),
];

#[test]
fn miniimagenets_caches_are_read_in_every_protocol() {
    for form in ["mini-0", "mini-2", "mini-4", "mini-5", "mini-python2"] {
        assert_holds(&open(&format!("{form}/mini-imagenet-cache-train.pkl")), &MINI, 4, 5);
    }
}

#[test]
fn a_folder_of_caches_is_opened_by_split_or_pooled() {
    assert_holds(&of_split("mini-4", "train"), &MINI, 4, 5);
    assert_holds(&of_split("mini-4", "test"), &[("n05/0", "n05", 0), ("n05/1", "n05", 1)], 4, 5);
    let refused = Collection::open(path_of("mini-4"), SourceOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("contains train, val, test, which are splits"), "{refused}");
    let pooled =
        Collection::open(path_of("mini-4"), SourceOptions { pool: true, ..SourceOptions::default() })
            .unwrap();
    assert_eq!(pooled.classes(), ["n01", "n02", "n03", "n04", "n05"]);
    assert_eq!(pooled.entries()[0].item, "train/n01/1");
    let unknown =
        Collection::open(path_of("mini-0"), SourceOptions { split: Some("val"), ..SourceOptions::default() })
            .unwrap_err();
    assert!(unknown.to_string().contains("no split 'val'"), "{unknown}");
}

#[test]
fn arrays_with_labels_are_read_and_classes_are_named_by_their_numbers() {
    let rows = [("00/1", "00", 1), ("02/0", "02", 0), ("02/2", "02", 2), ("11/3", "11", 3)];
    assert_holds(&open("metaopt/CIFAR_FS_train.pickle"), &rows, 3, 3);
    assert_holds(&of_split("metaopt", "train"), &rows, 3, 3);
}

#[test]
fn tieredimagenet_is_read_as_png_files_and_as_arrays() {
    let rows = [("owl/0", "owl", 0), ("crane/1", "crane", 1), ("crane 2/2", "crane 2", 2)];
    assert_holds(&open("tiered/train_images_png.pkl"), &rows, 4, 5);
    assert_holds(&of_split("tiered", "train"), &rows, 4, 5);
    // Stored, and deflated.
    assert_holds(&of_split("tiered-npz", "train"), &rows, 4, 5);
    assert_holds(&of_split("tiered-npz", "val"), &rows, 4, 5);
}

#[test]
fn cifar_100_is_read_from_its_python_and_its_binary_files() {
    let rows = [
        ("train/trout/trout_s_000000.png", "trout", 0),
        ("train/apple/apple_s_000001.png", "apple", 1),
        ("train/bee/bee_s_000002.png", "bee", 2),
        ("test/apple/apple_s_000000.png", "apple", 0),
        ("test/trout/trout_s_000001.png", "trout", 1),
    ];
    assert_holds(&open("cifar-100-python"), &rows, 32, 32);
    assert_holds(&open("cifar-100-python/train"), &rows[..3], 32, 32);
    // A path without a file name; the form with names is used if a folder contains both.
    assert_holds(&open("cifar-100-binary/.."), &rows, 32, 32);
    let numbered = [
        ("train/trout/00000", "trout", 0),
        ("train/apple/00001", "apple", 1),
        ("train/bee/00002", "bee", 2),
        ("test/apple/00000", "apple", 0),
        ("test/trout/00001", "trout", 1),
    ];
    assert_holds(&open("cifar-100-binary"), &numbered, 32, 32);
    assert_holds(&open("cifar-100-binary/test.bin"), &numbered[3..], 32, 32);
}

#[test]
fn cifars_classes_are_split_by_their_names_and_by_those_of_their_superclasses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fc100.json");
    std::fs::write(&file, r#"{"test": ["insects", "fish"]}"#).unwrap();
    for form in ["cifar-100-python", "cifar-100-binary"] {
        let mut by_superclass = open(form);
        let missing = by_superclass.keep_split(&Split::open(&file, "test").unwrap()).unwrap();
        assert_eq!((by_superclass.classes(), missing.len()), (&["bee".to_string(), "trout".into()][..], 0));
        let mut by_name = open(form);
        by_name.keep_split(&Split::open(Path::new("fc100"), "test").unwrap()).unwrap();
        assert_eq!(by_name.classes(), ["bee"]);
    }
}

#[test]
fn ravis_lists_find_their_images_in_the_folder_of_images() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    std::fs::create_dir(&images).unwrap();
    for number in 0..4_u8 {
        image::RgbImage::from_pixel(2, 2, image::Rgb([number, 7, 9]))
            .save(images.join(format!("n0{number}.png")))
            .unwrap();
    }
    std::fs::write(folder.path().join("train.csv"), "filename,label\nn00.png,owl\nn01.png,ant\n").unwrap();
    std::fs::write(folder.path().join("test.csv"), "filename,label\nn03.png,bee\n").unwrap();
    let read = |path: &Path, split| {
        Collection::open(path, SourceOptions { split, ..SourceOptions::default() }).unwrap()
    };
    for train in [read(folder.path(), Some("train")), read(&folder.path().join("train.csv"), None)] {
        assert_eq!(train.classes(), ["ant", "owl"]);
        assert_eq!(train.read_image(&train.entries()[0], Channels::Colour).unwrap().pixels[..3], [1, 7, 9]);
    }
    assert_eq!(read(folder.path(), Some("test")).classes(), ["bee"]);
}

/// The error for a pickle of protocol 2 in a file of this name.
fn problem(name: &str, bytes: &[u8]) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    Collection::open(&path, SourceOptions::default()).unwrap_err()
}

#[test]
fn files_that_are_something_else_are_refused_with_the_reason() {
    let message = |bytes: &[u8]| {
        let error = problem("cache.pkl", bytes);
        format!("{error}\n{}", error.hint().unwrap_or_default())
    };
    let whole = std::fs::read(path_of("mini-4/mini-imagenet-cache-train.pkl")).unwrap();
    assert!(
        message(&whole[..whole.len() / 2]).contains("it is truncated at byte 297\ndownload the file again")
    );
    assert!(message(b"cos\nsystem\n(S'true'\ntR.").contains("it calls os.system"));
    assert!(message(b"\x80\x02K\x07.").contains("it is an integer instead of a dictionary"));
    assert!(
        message(b"\x80\x02}U\x01aK\x01s.").contains("it has no key `image_data` or `data`; found keys: a")
    );
    assert!(message(b"\x80\x02}.").contains("it has no key `image_data` or `data`; found keys: none"));
    assert!(message(b"\x80\x02}U\x04dataK\x01s.").contains("its images are an integer instead of an array"));
    assert!(message(b"\x80\x02].").contains("X_labels.pkl"));
}

/// The error for CIFAR-100's binary form with one file replaced.
fn cifar_with(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(path_of("cifar-100-binary")).unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    std::fs::write(folder.path().join(name), bytes).unwrap();
    match Collection::open(folder.path(), SourceOptions::default()) {
        Ok(found) => panic!("{} images were read", found.entries().len()),
        Err(refused) => refused.to_string(),
    }
}

#[test]
fn cifars_binary_files_of_another_length_are_refused() {
    let whole = std::fs::read(path_of("cifar-100-binary/test.bin")).unwrap();
    for length in [0, 1, 2, 3073, 3075, 4000, whole.len() - 1] {
        let refused = cifar_with("test.bin", &whole[..length]);
        assert!(
            refused.contains(&format!("{length} bytes are not a multiple of the record size 3074")),
            "{refused}"
        );
    }
    for more in [1, 2, 3073] {
        let refused = cifar_with("test.bin", &[&whole[..], &vec![0; more]].concat());
        assert!(refused.contains("not a multiple of the record size"), "{refused}");
    }
}

#[test]
fn labels_of_cifar_that_have_no_name_or_contradict_each_other_are_refused_with_the_number_of_the_image() {
    let whole = std::fs::read(path_of("cifar-100-binary/test.bin")).unwrap();
    let with = |position: usize, label: u8| {
        let mut bytes = whole.clone();
        bytes[position] = label;
        cifar_with("test.bin", &bytes)
    };
    let refused = with(3074 + 1, 200);
    assert!(
        refused.contains("test.bin") && refused.contains("image 1 has the labels 200 and 0"),
        "{refused}"
    );
    assert!(refused.contains("there are 3 and 3 names"), "{refused}");
    assert!(with(0, 3).contains("image 0 has the labels 0 and 3"), "{}", with(0, 3));
    // The training file says that apples are fruit.
    let refused = with(0, 2);
    assert!(
        refused.contains("'apple' into the superclass 'insects', others into 'fruit_and_vegetables'"),
        "{refused}"
    );
}

#[test]
fn names_of_cifars_labels_that_are_missing_or_doubled_are_refused() {
    let with = |names: &[u8]| cifar_with("fine_label_names.txt", names);
    assert!(with(b"apple\n\ntrout\n").contains("name 2 of 3 is empty"), "{}", with(b"apple\n\ntrout\n"));
    assert!(with(b"apple\napple\ntrout\n").contains("it contains the name 'apple' twice"));
    assert!(with(b"apple\nbee\n").contains("has the labels 2 and 0"), "{}", with(b"apple\nbee\n"));
    assert!(with(b"").contains("name 1 of 1 is empty") || with(b"").contains("there are 0"), "{}", with(b""));
    assert!(with(&b"x".repeat(257)).contains("a name in it has 257 bytes; at most 256 are allowed"));
    assert!(with(b"ap\xffle\nbee\ntrout\n").contains("cannot read"), "not UTF-8");
}

#[test]
fn rows_and_labels_that_do_not_match_the_images_are_refused() {
    let whole = std::fs::read(path_of("mini-4/mini-imagenet-cache-train.pkl")).unwrap();
    // The list [0, 3] of the first class, with other rows in it.
    let position = whole.windows(4).rposition(|window| window == [b'K', 0, b'K', 3]).unwrap();
    let with = |rows: [u8; 2]| {
        let mut bytes = whole.clone();
        (bytes[position + 1], bytes[position + 3]) = (rows[0], rows[1]);
        problem("cache.pkl", &bytes).to_string()
    };
    assert!(with([0, 6]).contains("class 'n02' has row 6, but there are 6 images"), "{}", with([0, 6]));
    assert!(with([0, 5]).contains("row 5 is listed twice"), "{}", with([0, 5]));
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path_of("tiered/train_images_png.pkl"), folder.path().join("train_images_png.pkl"))
        .unwrap();
    let read = || Collection::open(folder.path(), SourceOptions::default()).unwrap_err().to_string();
    assert!(read().contains("its labels are missing"), "{}", read());
    std::fs::write(folder.path().join("train_labels.pkl"), b"\x80\x02](K\x01K\x02e.").unwrap();
    assert!(read().contains("3 images but 2 labels next to it"), "{}", read());
}

/// A pickle of a dictionary with four images of one pixel each under the key `data`, and further entries, each as the
/// instructions for key and value. Memo entry 9 is the string `name`.
fn pickle_of_four_pixels(name: &[u8], entries: &[&[u8]]) -> Vec<u8> {
    let length = (name.len() as u32).to_le_bytes();
    let memoized_name = [&b"\x80\x02X"[..], &length[..], name, b"q\x090"].concat();
    let element = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tRq\x000";
    let empty = b"}U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR";
    let state = b"(K\x01(K\x04K\x01K\x01th\x00I00\nU\x04abcdtbs";
    let entries: Vec<u8> = entries.iter().flat_map(|entry| [*entry, &b"s"[..]].concat()).collect();
    [&memoized_name[..], element, empty, state, &entries[..], b"."].concat()
}

/// A list of `count` references to memo entry 9, under the key `labels`.
fn labels(count: usize) -> Vec<u8> {
    [&b"U\x06labels("[..], &b"h\x09".repeat(count), b"l"].concat()
}

#[test]
fn labels_that_are_repeated_references_to_one_string_do_not_take_more_memory_than_the_file() {
    let short = pickle_of_four_pixels(b"owl", &[&labels(4)[..]]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.pkl");
    std::fs::write(&path, &short).unwrap();
    let read = Collection::open(&path, SourceOptions::default()).unwrap();
    assert_eq!((read.classes(), read.entries().len()), (&["owl".to_string()][..], 4));

    let long = "x".repeat(1 << 20).into_bytes();
    // As copies, these labels would be a terabyte.
    let refused = problem("cache.pkl", &pickle_of_four_pixels(&long, &[&labels(1 << 20)[..]])).to_string();
    assert!(refused.contains("4 images but 1048576 labels"), "{refused}");
    let names = labels(4);
    let class_dict = &b"U\x0aclass_dict}h\x09(K\x00ls"[..];
    let numbers = &b"U\x06labels(K\x00K\x00K\x00K\x00l"[..];
    let names_of_numbers = &b"U\x0dcatname2label}h\x09K\x00s"[..];
    for entries in [vec![&names[..]], vec![class_dict], vec![numbers, names_of_numbers]] {
        let refused = problem("cache.pkl", &pickle_of_four_pixels(&long, &entries)).to_string();
        assert!(
            refused.contains("a name in it has 1048576 bytes; at most 256 are allowed"),
            "{refused:.300}"
        );
    }
}

#[test]
fn built_in_splits_are_opened_by_name_and_unknown_names_are_refused_with_the_known_ones() {
    assert_eq!(Split::open(Path::new("mini"), "val").unwrap().classes.len(), 16);
    let [tiered, tiny] = ["tieredimagenet", "tiered-tiny"].map(|name| Split::all(Path::new(name)).unwrap());
    assert_eq!(
        tiny.iter().map(|split| split.classes.len()).collect::<Vec<_>>(),
        [45, 61, 17],
        "test, train, val"
    );
    for (part, whole) in tiny.iter().zip(&tiered) {
        assert!(part.name == whole.name && part.classes.is_subset(&whole.classes), "{}", part.name);
    }
    let unknown = Split::open(Path::new("imagenette"), "val").unwrap_err();
    assert!(
        unknown
            .to_string()
            .contains("built in: cifar-fs, cub, fc100, miniimagenet, tiered-tiny, tieredimagenet")
    );
    let outliers: Vec<&str> = trueshot_vision::split::imagenet_outliers().collect();
    assert_eq!(outliers.len(), 350);
    for split in ["mini", "tiered"].iter().flat_map(|name| Split::all(Path::new(name)).unwrap()) {
        assert!(!outliers.iter().any(|class| split.contains(class)), "{}", split.name);
    }
}
