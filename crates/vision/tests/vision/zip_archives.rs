//! Tests of images in ZIP archives: archives of ordinary programs are read, and hostile or damaged ones are refused
//! with the reason.

use std::io::{Cursor, Write};

use image::ImageFormat;
use trueshot_vision::{Channels, Collection, Error, SourceOptions, Unreadable};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn png(shade: u8) -> Vec<u8> {
    crate::image_kinds::file(image::GrayImage::from_pixel(3, 3, image::Luma([shade])), ImageFormat::Png)
}

fn stored() -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(CompressionMethod::Stored)
}

fn deflated() -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(CompressionMethod::Deflated)
}

/// An archive of members with their names, options and contents.
fn archive(members: &[(&str, SimpleFileOptions, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, options, bytes) in members {
        zip.start_file(*name, *options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Two images of different classes.
fn plain() -> Vec<u8> {
    archive(&[("ant/1.png", stored(), &png(10)), ("owl/2.png", deflated(), &png(20))])
}

fn open(bytes: &[u8]) -> (tempfile::TempDir, Result<Collection, Error>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("photos.ZIP");
    std::fs::write(&path, bytes).unwrap();
    let found = Collection::open(&path, SourceOptions::default());
    (folder, found)
}

/// The names and first pixels of all images, and the skipped items.
fn contents(bytes: &[u8]) -> (Vec<(String, u8)>, Vec<String>) {
    let (_folder, found) = open(bytes);
    let found = found.unwrap();
    let pixel = |entry| found.read_image(entry, Channels::Grey).unwrap().pixels[0];
    let images = found.entries().iter().map(|entry| (entry.item.clone(), pixel(entry))).collect();
    (images, found.skipped().iter().map(ToString::to_string).collect())
}

fn names(bytes: &[u8]) -> Vec<String> {
    contents(bytes).0.into_iter().map(|(name, _)| name).collect()
}

fn refusal(bytes: &[u8]) -> String {
    open(bytes).1.unwrap_err().to_string()
}

/// The error for the only image, which cannot be read.
fn unreadable(bytes: &[u8]) -> Unreadable {
    let (_folder, found) = open(bytes);
    let found = found.unwrap();
    let problems = found.entries().iter().filter_map(|entry| found.read_image(entry, Channels::Grey).err());
    let problems: Vec<Unreadable> = problems.collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].clone()
}

/// The position of some bytes in a file.
fn position_of(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|window| window == part).unwrap()
}

/// The last position of some bytes in a file, which is in the directory at its end.
fn last_position_of(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).rposition(|window| window == part).unwrap()
}

#[test]
fn stored_and_deflated_images_are_read_and_the_class_is_the_folder() {
    let (images, skipped) = contents(&plain());
    assert_eq!(images, [("ant/1.png".into(), 10), ("owl/2.png".into(), 20)]);
    assert_eq!(skipped, [""; 0]);
}

#[test]
fn folders_links_and_files_of_operating_systems_are_ignored() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_directory("photos/ant", stored()).unwrap();
    zip.add_symlink("photos/ant/link.png", "/etc/passwd", stored()).unwrap();
    for name in
        ["photos/ant/1.png", "__MACOSX/photos/ant/._1.png", "photos/.DS_Store", "photos/ant/Thumbs.db"]
    {
        zip.start_file(name, deflated()).unwrap();
        zip.write_all(&png(10)).unwrap();
    }
    zip.start_file("photos/ant/notes.txt", stored()).unwrap();
    let (images, skipped) = contents(&zip.finish().unwrap().into_inner());
    assert_eq!(images, [("photos/ant/1.png".into(), 10)]);
    assert_eq!(skipped, ["photos/ant/notes.txt: not an image by its file extension"]);
}

#[test]
fn paths_that_lead_out_of_the_archive_are_skipped_with_the_reason() {
    let members = ["../../etc/1.png", "/owl/2.png", "..\\owl\\3.png", "owl\\4.png"];
    let png = png(10);
    let members: Vec<_> = members.iter().map(|name| (*name, stored(), &png[..])).collect();
    let (images, skipped) = contents(&archive(&members));
    let names: Vec<&str> = images.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["owl/2.png", "owl/4.png"]);
    assert_eq!(
        skipped,
        [
            "../../etc/1.png: its path leads out of the archive",
            "../owl/3.png: its path leads out of the archive"
        ]
    );
}

#[test]
fn names_are_utf_8_or_else_of_code_page_437() {
    let mut bytes = archive(&[("kXYfer/1.png", stored(), &png(10))]);
    // The flag for UTF-8 names is not set.
    let positions = [position_of(&bytes, b"kXYfer") + 1, last_position_of(&bytes, b"kXYfer") + 1];
    for (letters, expected) in [([0xc3, 0xa4], "k\u{e4}fer/1.png"), ([0x84, 0x94], "k\u{e4}\u{f6}fer/1.png")]
    {
        positions.iter().for_each(|start| bytes[*start..*start + 2].copy_from_slice(&letters));
        assert_eq!(names(&bytes), [expected]);
    }
}

#[test]
fn encrypted_images_and_other_compressions_are_skipped_with_advice() {
    let mut bytes = plain();
    // The flags in the directory and in front of the member, for the first member only.
    let directory = position_of(&bytes, b"PK\x01\x02");
    bytes[directory + 8] |= 1;
    bytes[6] |= 1;
    let (images, skipped) = contents(&bytes);
    assert_eq!(images, [("owl/2.png".into(), 20)]);
    assert_eq!(skipped, ["ant/1.png: encrypted: unpack the archive with its password, and give the folder"]);

    let mut bytes = plain();
    let directory = position_of(&bytes, b"PK\x01\x02");
    bytes[directory + 10] = 93;
    bytes[8] = 93;
    let (images, skipped) = contents(&bytes);
    assert_eq!(images.len(), 1);
    assert!(skipped[0].starts_with("ant/1.png: compressed with "), "{skipped:?}");
    assert!(skipped[0].ends_with("unpack the archive, and give the folder"), "{skipped:?}");
}

#[test]
fn two_members_of_the_same_name_are_refused() {
    let mut bytes = archive(&[("ant/1.png", stored(), &png(1)), ("ant/2.png", stored(), &png(2))]);
    for start in [position_of(&bytes, b"ant/2.png"), last_position_of(&bytes, b"ant/2.png")] {
        bytes[start + 4] = b'1';
    }
    assert!(refusal(&bytes).ends_with("two of its files have the same name"), "{}", refusal(&bytes));
    let slashes = archive(&[("ant/1.png", stored(), &png(1)), ("ant\\1.png", stored(), &png(2))]);
    assert!(refusal(&slashes).ends_with("two of its files are called 'ant/1.png'"), "{}", refusal(&slashes));
}

#[test]
fn members_that_share_bytes_are_refused() {
    let mut bytes = archive(&[("ant/1.png", stored(), &png(1)), ("ant/2.png", stored(), &png(2))]);
    // The second entry of the directory points to the first member.
    let second = last_position_of(&bytes, b"PK\x01\x02");
    bytes[second + 42..second + 46].copy_from_slice(&[0; 4]);
    assert!(refusal(&bytes).contains("share bytes"), "{}", refusal(&bytes));
}

#[test]
fn a_member_that_is_not_as_long_as_claimed_or_damaged_is_unreadable() {
    // The size in the directory, which decides.
    for claimed in [3, 200] {
        let mut bytes = plain();
        let directory = last_position_of(&bytes, b"PK\x01\x02");
        bytes[directory + 24] = claimed;
        let message = unreadable(&bytes).to_string();
        assert!(message.contains(&format!("does not have the {claimed} bytes")), "{message}");
    }
    let mut bytes = plain();
    let start = position_of(&bytes, b"IDAT") + 6;
    bytes[start] ^= 1;
    assert_eq!(unreadable(&bytes).to_string(), "cannot be read: damaged: its checksum does not match");
}

#[test]
fn an_archive_that_claims_gigabytes_is_refused_and_nothing_is_unpacked() {
    let zeros = vec![0; 1 << 20];
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("ant/bomb.png", deflated()).unwrap();
    (0..128).for_each(|_| zip.write_all(&zeros).unwrap());
    let bytes = zip.finish().unwrap().into_inner();
    assert!(bytes.len() < 1 << 20);
    let refused = open(&bytes).1.unwrap_err();
    assert!(refused.to_string().contains("unpacks to more than"), "{refused}");
    assert_eq!(refused.hint().unwrap(), "if you trust the archive, unpack it and give the folder");
}

#[test]
fn zip64_archives_are_read() {
    let large = archive(&[("ant/1.png", stored().large_file(true), &png(10))]);
    assert_eq!(names(&large), ["ant/1.png"]);
    // More members than 16 bits can count.
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for number in 0..66_000 {
        zip.start_file(format!("ant/{number}.png"), stored()).unwrap();
    }
    let (_folder, found) = open(&zip.finish().unwrap().into_inner());
    assert_eq!(found.unwrap().entries().len(), 66_000);
}
