//! Tests of folders, archives and lists of the same images: they are the same collection.

use std::path::Path;

use image::ImageFormat;
use trueshot_vision::{Channels, Collection, SourceOptions, Unreadable};

const NAMES: [&str; 4] = ["ant/1.png", "ant/2.png", "owl/1.png", "owl/3.png"];

fn png(number: usize) -> Vec<u8> {
    let shade = image::Luma([60 * number as u8]);
    crate::image_kinds::file(image::GrayImage::from_pixel(3, 3, shade), ImageFormat::Png)
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (number, name) in NAMES.iter().enumerate() {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, png(number)).unwrap();
    }
    folder
}

fn images_as_tar(prefix: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    // Not in the order of the names.
    for (number, name) in NAMES.iter().enumerate().rev() {
        let bytes = png(number);
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, format!("{prefix}{name}"), &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

fn open(path: &Path) -> Collection {
    Collection::open(path, SourceOptions::default()).unwrap()
}

/// The class names, and the class, name and first pixel of every image.
fn contents(collection: &Collection) -> (Vec<String>, Vec<(u32, String, u8)>) {
    let entries = collection.entries().iter().map(|entry| {
        let image = collection.read_image(entry, Channels::Grey).unwrap();
        (entry.class, entry.item.clone(), image.pixels[0])
    });
    (collection.classes().to_vec(), entries.collect())
}

#[test]
fn a_folder_its_archives_and_its_lists_are_the_same_collection() {
    let folder = folder();
    let expected = contents(&open(folder.path()));
    assert_eq!(expected.0, ["ant", "owl"]);
    assert_eq!(expected.1[3], (1, "owl/3.png".to_string(), 180));

    let path_to = |name: &str| folder.path().join(name);
    std::fs::write(path_to("all.tar"), images_as_tar("")).unwrap();
    assert_eq!(contents(&open(&path_to("all.tar"))), expected);

    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&images_as_tar("./")).unwrap();
    std::fs::write(path_to("all.tar.gz"), encoder.finish().unwrap()).unwrap();
    assert_eq!(contents(&open(&path_to("all.tar.gz"))), expected);

    // The class is the first three letters of the name.
    let line = |name: &&str| format!("{name},{}\n", &name[..3]);
    std::fs::write(path_to("list.csv"), NAMES.iter().rev().map(line).collect::<String>()).unwrap();
    assert_eq!(contents(&open(&path_to("list.csv"))), expected);

    let line = |name: &&str| format!("{{\"path\": \"{name}\", \"label\": \"{}\"}}\n", &name[..3]);
    std::fs::write(path_to("list.jsonl"), NAMES.iter().map(line).collect::<String>()).unwrap();
    assert_eq!(contents(&open(&path_to("list.jsonl"))), expected);
}

#[test]
fn an_outer_folder_that_all_members_share_is_not_part_of_the_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("around.tar");
    std::fs::write(&path, images_as_tar("birds-1.0/")).unwrap();
    let collection = open(&path);
    assert_eq!(collection.classes(), ["ant", "owl"]);
    assert_eq!(collection.entries()[0].item, "birds-1.0/ant/1.png");
}

#[test]
fn members_of_a_tar_that_lead_out_of_it_are_skipped_with_the_reason() {
    let mut builder = tar::Builder::new(Vec::new());
    for name in ["../owl/1.png", "ant/2.png"] {
        let bytes = png(1);
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        // Not with `set_path`, which refuses such names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, &bytes[..]).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images.tar");
    std::fs::write(&path, builder.into_inner().unwrap()).unwrap();
    let collection = open(&path);
    assert_eq!(collection.entries().len(), 1);
    let skipped: Vec<String> = collection.skipped().iter().map(ToString::to_string).collect();
    assert_eq!(skipped, ["../owl/1.png: its path leads out of the archive"]);
}

#[test]
fn missing_unsupported_invalid_and_empty_sources_are_reported() {
    let folder = folder();
    let problem = |name: &str| {
        let error = Collection::open(folder.path().join(name), SourceOptions::default()).unwrap_err();
        format!("{error}\n{}", error.hint().unwrap_or_default())
    };
    assert!(problem("nothing").contains("cannot read"));
    for name in ["pictures.7z", "pictures.tar.xz"] {
        std::fs::write(folder.path().join(name), b"x").unwrap();
        assert!(problem(name).contains("unpack the archive first"), "{}", problem(name));
    }
    std::fs::write(folder.path().join("not.zip"), b"x").unwrap();
    assert!(problem("not.zip").contains("not.zip is not a valid archive"), "{}", problem("not.zip"));
    // One header, and less than one block of data.
    std::fs::write(folder.path().join("cut.tar"), &images_as_tar("")[..700]).unwrap();
    assert!(problem("cut.tar").contains("not a valid archive"), "{}", problem("cut.tar"));
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(problem("empty").contains("no images in"));
}

#[test]
fn a_tar_that_ends_inside_a_file_that_is_not_an_image_is_refused() {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in [("ant/1.png", png(1)), ("ant/notes.txt", vec![b'x'; 2000])] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    let whole = builder.into_inner().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images.tar");
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(open(&path).entries().len(), 1);
    // Two empty blocks end the archive, and the notes take four.
    std::fs::write(&path, &whole[..whole.len() - 1024 - 1000]).unwrap();
    let refused = Collection::open(&path, SourceOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("a member is truncated"), "{refused}");
}

#[test]
fn a_listed_file_that_does_not_exist_cannot_be_read_and_the_others_can() {
    let folder = folder();
    let list = folder.path().join("list.csv");
    std::fs::write(&list, "ant/1.png,ant\nant/9.png,ant\n").unwrap();
    let collection = open(&list);
    let read: Vec<_> = collection
        .entries()
        .iter()
        .map(|entry| collection.read_image(entry, Channels::Grey).is_ok())
        .collect();
    assert_eq!(read, [true, false]);
    let reason = collection.read_image(&collection.entries()[1], Channels::Grey).unwrap_err();
    assert!(matches!(reason, Unreadable::File(_)), "{reason}");
}

#[test]
fn a_list_finds_the_folder_of_images_although_its_first_image_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("images")).unwrap();
    std::fs::write(folder.path().join("images/2.png"), png(2)).unwrap();
    let list = folder.path().join("list.csv");
    std::fs::write(&list, "1.png,ant\n2.png,ant\n").unwrap();
    let collection = open(&list);
    assert!(collection.read_image(&collection.entries()[1], Channels::Grey).is_ok());
}

#[cfg(unix)]
#[test]
fn a_folder_that_may_not_be_read_is_skipped_with_the_reason_and_the_others_are_used() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let closed = folder.path().join("ant");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Permissions do not keep root from reading.
    if std::fs::read_dir(&closed).is_err() {
        let collection = open(folder.path());
        assert_eq!(collection.classes(), ["owl"]);
        let skipped = collection.skipped().iter().map(|one| one.to_string()).collect::<Vec<_>>();
        assert_eq!(skipped, ["ant: a folder that cannot be read: Permission denied (os error 13)"]);
        let images = trueshot_vision::source::images_below(folder.path()).unwrap();
        assert_eq!((images.files.len(), images.skipped.len()), (2, 1));
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn keep_first_keeps_the_first_images_of_each_class_by_name() {
    let folder = folder();
    let mut collection = open(folder.path());
    collection.keep_first(1);
    let names: Vec<_> = collection.entries().iter().map(|entry| entry.item.as_str()).collect();
    assert_eq!(names, ["ant/1.png", "owl/1.png"]);
}

#[test]
fn the_built_in_drawings_are_a_source() {
    let mut collection = open(Path::new("omniglot"));
    assert_eq!((collection.classes().len(), collection.entries().len()), (1623, 32_460));
    let test = trueshot_vision::split::Split::omniglot("test").unwrap();
    assert!(collection.keep_split(&test).unwrap().is_empty());
    assert_eq!(collection.classes().len(), 423);
    let entry = &collection.entries()[0];
    let drawing = collection.read_image(entry, Channels::Grey).unwrap();
    assert_eq!((drawing.width, drawing.height), (105, 105));
    assert!(drawing.pixels.contains(&0) && drawing.pixels.contains(&255));
    assert!(collection.classes()[entry.class as usize].starts_with("Gurmukhi/"));
}

#[cfg(target_os = "linux")]
#[test]
fn files_whose_names_are_not_utf8_are_skipped_one_by_one() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let write = |name: &[u8]| {
        let path = folder.path().join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, png(1)).unwrap();
    };
    [&b"ant/caf\xe9.png"[..], b"ant/caf\xe8.png", b"b\xffd/1.png"].iter().for_each(|name| write(name));
    let skipped = |collection: &Collection| -> Vec<String> {
        collection.skipped().iter().map(ToString::to_string).collect()
    };
    let found = open(folder.path());
    assert_eq!(found.entries().len(), NAMES.len());
    let reason = "its name is not valid UTF-8: rename it";
    assert_eq!(
        skipped(&found),
        [
            format!("ant/caf\\xe8.png: {reason}"),
            format!("ant/caf\\xe9.png: {reason}"),
            format!("b\\xffd: {reason}")
        ]
    );

    let mut builder = tar::Builder::new(Vec::new());
    for name in [&b"ant/1.png"[..], b"ant/caf\xe9.png", b"ant/caf\xe8.png"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(png(1).len() as u64);
        builder.append_data(&mut header, OsStr::from_bytes(name), &png(1)[..]).unwrap();
    }
    std::fs::write(folder.path().join("names.tar"), builder.into_inner().unwrap()).unwrap();
    let found = open(&folder.path().join("names.tar"));
    assert_eq!(found.entries().len(), 1);
    assert_eq!(skipped(&found).len(), 2, "{:?}", skipped(&found));

    let found = trueshot_vision::source::images_below(folder.path()).unwrap();
    assert_eq!(found.files.len(), NAMES.len());
    // The archive names.tar, and the three files whose names are not UTF-8.
    assert_eq!(found.skipped.len(), 4, "{found:?}");
}

/// `repair --labels` writes this list and `audit` reads it. A spreadsheet must not execute names that look like
/// formulas.
#[test]
fn labels_csv_is_read_back_with_every_name_unchanged() {
    use trueshot::repair::{Labelled, labels_csv};
    let names = [
        "=1+1.png",
        "'=1.png",
        "+a, b.png",
        "-x.png",
        "@a.png",
        " space .png",
        "\ttab.png",
        "\"q\".png",
        "a\nb.png",
    ];
    let folder = tempfile::tempdir().unwrap();
    let labelled = |name: &&str| Labelled {
        item: name.to_string(),
        path: name.to_string(),
        label: Some(format!("{name} class")),
        was: name.to_string(),
    };
    let labelled: Vec<Labelled> = names.iter().map(labelled).collect();
    let list = folder.path().join("labels.csv");
    let text = labels_csv(&labelled);
    std::fs::write(&list, &text).unwrap();
    let found = open(&list);
    let mut expected: Vec<(String, String)> =
        labelled.into_iter().map(|one| (one.label.unwrap(), one.path)).collect();
    expected.sort();
    let found: Vec<(String, String)> = found
        .entries()
        .iter()
        .map(|entry| (found.classes()[entry.class as usize].clone(), entry.item.clone()))
        .collect();
    assert_eq!(found, expected);
    let is_formula = |field: &str| field.trim_start_matches('"').starts_with(['=', '+', '-', '@', '\t']);
    assert!(!text.split([',', '\n']).any(is_formula), "{text}");
}
