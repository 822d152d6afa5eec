//! Tests of `trueshot audit` on copies of images and on images of poor quality.

use crate::fixture::text;
use crate::photos::PhotoFolder;
use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage};
use serde_json::Value;

/// An image of random squares in three sizes.
fn squares(seed: u64) -> RgbImage {
    let random = |place: u64| {
        let mixed = (seed * 1_000_003 + place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u32
    };
    let level = |x: u32, y: u32, size: u32, channel: u64| {
        random(u64::from(x / size * 1000 + y / size) * 31 + u64::from(size) * 7 + channel)
    };
    RgbImage::from_fn(192, 160, |x, y| {
        Rgb([0, 1, 2].map(|channel| {
            ([8, 24, 64].map(|size| level(x, y, size, channel)).iter().sum::<u32>() / 3) as u8
        }))
    })
}

/// The usual photos, and in each class four images of squares.
fn folder() -> PhotoFolder {
    let photos = PhotoFolder::new();
    for (class, name) in ["checks", "rings", "stripes"].iter().enumerate() {
        for number in 0..4 {
            save(&photos, &format!("{name}/squares-{number}.png"), &squares(10 * class as u64 + number));
        }
    }
    photos
}

fn save(photos: &PhotoFolder, name: &str, image: &RgbImage) {
    image.save(photos.path("photos").join(name)).unwrap();
}

fn json(photos: &PhotoFolder, arguments: &[&str]) -> Value {
    let done = photos.audit(&[&["--format", "json"], arguments].concat()).assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

/// The reported pairs that contain one of the squares.
fn pairs(found: &Value) -> Vec<(String, String, bool)> {
    let name = |pair: &Value, key: &str| pair[key].as_str().unwrap().to_string();
    let pair =
        |pair: &Value| (name(pair, "item"), name(pair, "other"), pair["label_conflict"].as_bool().unwrap());
    let all = found["duplicates"].as_array().unwrap().iter().map(pair);
    all.filter(|(item, other, _)| format!("{item} {other}").contains("squares")).collect()
}

#[test]
fn resized_cropped_and_compressed_copies_are_found_within_and_across_classes() {
    let photos = folder();
    let (small, part) = (squares(0), squares(11));
    save(&photos, "checks/a-squares.jpg", &imageops::resize(&small, 100, 80, FilterType::Triangle));
    let part = imageops::crop_imm(&part, 12, 8, 168, 144).to_image();
    save(&photos, "stripes/b-squares.jpg", &part);
    let found = json(&photos, &[]);
    let expected = [
        ("rings/squares-1.png", "stripes/b-squares.jpg", true),
        ("checks/a-squares.jpg", "checks/squares-0.png", false),
    ];
    let expected = expected.map(|(item, other, conflict)| (item.to_string(), other.to_string(), conflict));
    assert_eq!(pairs(&found), expected);
    // This time the measures come from the cache.
    assert_eq!(json(&photos, &[]), found);
    assert_eq!(json(&photos, &["--threads", "1"]), found);
    assert_eq!(json(&photos, &["--no-cache", "--threads", "3"]), found);

    let shown = text(&photos.audit(&["--html", "a.html"]).assert().success().get_output().stdout);
    let line = "rings/squares-1.png is nearly identical to stripes/b-squares.jpg";
    assert!(shown.contains("label conflicts: the same item with different labels\n"), "{shown}");
    assert!(shown.contains(line), "{shown}");
    let page = std::fs::read_to_string(photos.path("a.html")).unwrap();
    assert!(page.contains("Label conflicts: the same item with different labels") && page.contains(line));
}

#[test]
fn poor_images_are_listed_and_ordinary_ones_are_not() {
    let photos = folder();
    save(&photos, "checks/blurred.png", &imageops::blur(&squares(50), 5.0));
    let bright = squares(51);
    let dim = RgbImage::from_fn(192, 160, |x, y| Rgb(bright.get_pixel(x, y).0.map(|level| level / 10)));
    save(&photos, "checks/dark.png", &dim);
    save(&photos, "rings/blank.png", &RgbImage::from_pixel(100, 90, Rgb([200, 210, 190])));
    save(&photos, "rings/tiny.png", &imageops::resize(&squares(52), 24, 20, FilterType::Triangle));
    photos.write("stripes/broken.png", b"\x89PNG\r\n\x1a\n");
    let found = json(&photos, &[]);
    let problems: Vec<String> = found["image_problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| format!("{} {}", problem["item"].as_str().unwrap(), problem["kinds"]))
        .collect();
    let expected = [
        "checks/blurred.png [\"blurred\"]",
        "checks/dark.png [\"dark\"]",
        "rings/blank.png [\"blank\"]",
        "rings/tiny.png [\"tiny\"]",
        "stripes/broken.png [\"unreadable\"]",
    ];
    assert_eq!(problems, expected);
    assert_eq!(json(&photos, &[]), found, "the same from the cache");
    let shown = text(&photos.audit(&[]).assert().success().get_output().stdout);
    assert!(shown.contains("image problems\n  checks/blurred.png: blurred\n"), "{shown}");

    photos.trueshot(&["embed", "photos", "-o", "rows.safetensors"]).assert().success();
    let done = photos.trueshot(&["audit", "rows.safetensors", "--format", "json"]).assert().success();
    let of_rows: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(of_rows["image_problems"], serde_json::json!([]), "rows have no images");
}
