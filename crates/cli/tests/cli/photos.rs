//! Test fixture: a folder of images that any backbone can tell apart, next to which `trueshot` is run.
#![allow(dead_code)]

use std::path::PathBuf;

use assert_cmd::Command;
use image::{Rgb, RgbImage};

const CLASSES: [&str; 3] = ["checks", "rings", "stripes"];
/// Images per class.
const PICTURES: u32 = 6;

/// A folder with `photos`, which has six images of each of three classes.
pub struct PhotoFolder(tempfile::TempDir);

impl PhotoFolder {
    pub fn new() -> Self {
        let photos = PhotoFolder(tempfile::tempdir().unwrap());
        for (kind, class) in CLASSES.iter().enumerate() {
            std::fs::create_dir_all(photos.path("photos").join(class)).unwrap();
            for number in 0..PICTURES {
                picture(kind, number)
                    .save(photos.path("photos").join(class).join(format!("{number}.png")))
                    .unwrap();
            }
        }
        photos
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file below `photos`.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path("photos").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Exchanges two files below `photos`; if they are of two classes, both are then in a wrong class folder.
    pub fn exchange(&self, one: &str, other: &str) {
        let read = |name: &str| std::fs::read(self.path("photos").join(name)).unwrap();
        let (first, second) = (read(one), read(other));
        self.write(one, &second);
        self.write(other, &first);
    }

    /// A command in the parent folder of `photos`, with a cache of embeddings of its own.
    pub fn trueshot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
        command.current_dir(self.0.path()).env("XDG_CACHE_HOME", self.path("cache")).env_remove("COLUMNS");
        command.args(arguments);
        command
    }

    /// `audit photos` with more arguments.
    pub fn audit(&self, arguments: &[&str]) -> Command {
        self.trueshot(&[&["audit", "photos"], arguments].concat())
    }

    /// All files below a folder with their contents, by path within it.
    pub fn contents(&self, folder: &str) -> std::collections::BTreeMap<String, Vec<u8>> {
        let mut found = std::collections::BTreeMap::new();
        let mut folders = vec![self.path(folder)];
        while let Some(inside) = folders.pop() {
            for entry in std::fs::read_dir(inside).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(self.path(folder)).unwrap().to_string_lossy().into_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
        found
    }
}

/// A picture of checks, rings or stripes, each kind in its own colours, with small variations.
fn picture(kind: usize, number: u32) -> RgbImage {
    RgbImage::from_fn(96, 96, |x, y| {
        let (x, y, width) = (x + 5 * number, y + 3 * number, 10 + number);
        let (dx, dy) = (x as f32 - 60.0, y as f32 - 55.0);
        let lit = match kind {
            0 => (x / width + y / width).is_multiple_of(2),
            1 => ((dx * dx + dy * dy).sqrt() as u32 / width).is_multiple_of(2),
            _ => (x / width).is_multiple_of(2),
        };
        let colours = [[230, 230, 220], [220, 60, 40], [30, 90, 200]];
        let shade = 10 * number as u8;
        if lit {
            Rgb(colours[kind].map(|value: u8| value.saturating_sub(shade)))
        } else {
            Rgb([15, 20 + 60 * kind as u8, 25])
        }
    })
}
