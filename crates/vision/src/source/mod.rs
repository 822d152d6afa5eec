//! Sources of labelled images: a folder of class folders, an archive of one, a list of paths and labels, a published
//! data set, or the built-in drawings. Start with [`Collection`].
//!
//! Opening a source lists its images and reads none. A [`Collection`] is that list, sorted by class and then by item
//! name. An *item* is an image; its name is its path within the source. [`Collection::read_image`] reads one image. If
//! that fails, the caller skips the image, and decides whether enough images are left.
//!
//! Each kind of source has a module that lists its images: `folder`, `archive` (tar), `zip_archive`, `list`,
//! `published` and `drawings`. `paths` finds the class of an image from its path, for folders and archives.

mod archive;
mod drawings;
mod folder;
mod list;
mod paths;
mod published;
mod zip_archive;

pub(crate) use drawings::class_name as drawing_class_name;
pub use folder::{ImageFiles, images_below};
pub(crate) use folder::{class_images, read as file_bytes};
pub use paths::is_image;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::decoded_image::{Channels, DecodeLimits, DecodedImage};
use crate::error::{Error, Result, Skipped, Unreadable};
use crate::split::Split;

/// Whether a path is the name of the built-in data set. A file or folder of that name takes precedence.
pub fn is_built_in(path: &Path) -> bool {
    path.as_os_str() == drawings::NAME && !path.exists()
}

/// Whether a source defines its splits (which classes are for training, validation and test) itself: a folder with one
/// published file per split, or the built-in drawings.
pub fn has_splits(path: &Path) -> bool {
    is_built_in(path) || !published::splits(path).is_empty()
}

/// Whether a source other than the built-in one has a folder or a published file for a split.
pub fn has_split(path: &Path, split: &str) -> bool {
    path.join(split).is_dir() || published::splits(path).contains(&split)
}

/// The extensions of supported archives.
const ARCHIVE_ENDINGS: [&str; 4] = [".zip", ".tar", ".tar.gz", ".tgz"];

/// How to read a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceOptions<'a> {
    /// Whether folders `train`, `val` and `test` above the class folders are merged.
    pub pool: bool,
    /// The one of these folders (or of the published files of splits) to read.
    pub split: Option<&'a str>,
    /// Whether images may have no label, as those to classify: images outside class folders get the class "", as do
    /// rows of a list without a label, and folders of splits are ordinary folders.
    pub labels_optional: bool,
}

/// One labelled image of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEntry {
    /// The index of its class.
    pub class: u32,
    /// Its name within the source.
    pub item: String,
    location: ImageLocation,
}

/// Where the contents of an image are.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ImageLocation {
    /// In its own file.
    File(PathBuf),
    /// In a range of the source's file.
    Range { offset: u64, length: u64 },
    /// In a member of a ZIP archive.
    Zip(zip_archive::ZipMember),
    /// In memory: decompressed, or a range of a memory-mapped file.
    Memory(bytes::Bytes),
    /// Pixels in an array.
    Pixels(published::Pixels),
    /// A built-in drawing: the index of its character, and its number among the drawings of that character, from 0.
    Drawing { character: usize, number: usize },
}

/// A list of labelled images, in an order that depends on their names only.
///
/// ```
/// use trueshot_vision::{Bitmap, Channels, Collection, SourceOptions};
///
/// let folder = tempfile::tempdir()?;
/// std::fs::create_dir(folder.path().join("diagonal"))?;
/// std::fs::write(folder.path().join("diagonal/1.png"), Bitmap::from_fn(9, 9, |x, y| x == y).to_png())?;
///
/// let images = Collection::open(folder.path(), SourceOptions::default())?;
/// assert_eq!(images.classes(), ["diagonal"]);
/// let image = images.read_image(&images.entries()[0], Channels::Grey)?;
/// assert_eq!((image.width, image.height), (9, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Collection {
    path: PathBuf,
    classes: Vec<String>,
    /// Sorted by class, then by name.
    entries: Vec<ImageEntry>,
    /// Files that are not used, sorted by name.
    skipped: Vec<Skipped>,
    /// The superclass of each class, if the source has them.
    superclasses: BTreeMap<String, String>,
    /// See [`Collection::empty_folders`].
    empty_folders: Vec<String>,
}

impl ImageEntry {
    /// The file of the image, if it has its own.
    pub fn path(&self) -> Option<&Path> {
        match &self.location {
            ImageLocation::File(path) => Some(path),
            _ => None,
        }
    }
}

impl Collection {
    /// Lists the images of a source: a folder, `.zip`, `.tar`, `.tar.gz` (`.tgz`), `.csv`, `.jsonl`, a published data
    /// set (`.pkl`, `.pickle`, `.npz`, `.npy`, files of CIFAR-100), or `omniglot`, for which [`Collection::keep_split`]
    /// selects a split.
    pub fn open(path: impl AsRef<Path>, options: SourceOptions<'_>) -> Result<Self> {
        let path = path.as_ref();
        if is_built_in(path) {
            return drawings::list();
        }
        let collection = match published::open(path, options)? {
            Some(collection) => collection,
            None => Self::open_plain(path, options)?,
        };
        collection.check_not_empty()
    }

    /// Opens a folder, an archive or a list.
    fn open_plain(path: &Path, options: SourceOptions<'_>) -> Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let ends = |ending: &str| name.ends_with(ending);
        if let Some(split) = options.split {
            let folder = path.join(split);
            if !folder.is_dir() {
                return Err(Error::NoSplits { path: path.into(), split: split.into() });
            }
            return folder::list(&folder, SourceOptions::default());
        }
        if path.is_dir() {
            folder::list(path, options)
        } else if ends(".zip") {
            zip_archive::list(path, options)
        } else if ends(".tar") {
            archive::list(path, options)
        } else if ends(".tar.gz") || ends(".tgz") {
            archive::list_gzip(path, options)
        } else if ends(".csv") || ends(".jsonl") {
            list::read(path, options.labels_optional)
        } else {
            // A missing path is more likely than an unknown kind of file.
            std::fs::metadata(path).map_err(|source| trueshot::Error::Read { path: path.into(), source })?;
            Err(Error::UnknownSource { path: path.into() })
        }
    }

    /// Sorts labelled images, each given as class, item name and location, into a collection. Of images with the same
    /// class and item name the last is kept.
    fn new(path: &Path, images: Vec<(String, String, ImageLocation)>, mut skipped: Vec<Skipped>) -> Self {
        let mut by_class: BTreeMap<String, BTreeMap<String, ImageLocation>> = BTreeMap::new();
        for (class, item, location) in images {
            by_class.entry(class).or_default().insert(item, location);
        }
        skipped.sort_by(|a, b| a.item.cmp(&b.item));
        let (mut classes, mut entries) = (Vec::new(), Vec::new());
        for (class, items) in by_class {
            let number = classes.len() as u32;
            entries.extend(items.into_iter().map(|(item, location)| ImageEntry {
                class: number,
                item,
                location,
            }));
            classes.push(class);
        }
        let (superclasses, empty_folders) = (BTreeMap::new(), Vec::new());
        Collection { path: path.into(), classes, entries, skipped, superclasses, empty_folders }
    }

    /// Adds the superclass of each class.
    fn with_superclasses(self, superclasses: BTreeMap<String, String>) -> Self {
        Collection { superclasses, ..self }
    }

    /// Returns an error if no image is listed.
    fn check_not_empty(self) -> Result<Self> {
        if self.entries.is_empty() {
            let skipped = self.skipped.first().map(Skipped::to_string);
            return Err(Error::NoImages { path: self.path, skipped });
        }
        Ok(self)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is an archive of class folders.
    pub fn is_archive(&self) -> bool {
        let name =
            self.path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        self.path.is_file() && ARCHIVE_ENDINGS.iter().any(|ending| name.ends_with(ending))
    }

    /// Whether every image has its own file, as in a folder or a list.
    pub fn has_own_files(&self) -> bool {
        self.entries.iter().all(|entry| entry.path().is_some())
    }

    /// Whether it is the built-in data set.
    pub fn is_built_in(&self) -> bool {
        is_built_in(&self.path)
    }

    /// The names of the classes, sorted.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The images, sorted by class and then by name.
    pub fn entries(&self) -> &[ImageEntry] {
        &self.entries
    }

    /// The name of an entry's class.
    pub fn class_of(&self, entry: &ImageEntry) -> &str {
        &self.classes[entry.class as usize]
    }

    /// Files that were skipped because of their name or location.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Empty folders: usually classes without images yet.
    pub fn empty_folders(&self) -> &[String] {
        &self.empty_folders
    }

    /// Keeps only the classes of a split, which may name a class, a folder above it, or its superclass. Returns the
    /// names in the split that are not in the collection.
    ///
    /// # Errors
    /// If no class of the collection is in the split.
    pub fn keep_split(&mut self, split: &Split) -> Result<Vec<String>> {
        let is_in_split = |class: &String| {
            let superclass = self.superclasses.get(class);
            split.contains(class) || superclass.is_some_and(|superclass| split.contains(superclass))
        };
        let kept: BTreeSet<String> =
            self.classes.iter().filter(|class| is_in_split(class)).cloned().collect();
        if kept.is_empty() {
            let shown: Vec<&str> = self.classes.iter().take(3).map(String::as_str).collect();
            return Err(Error::NoClassOfSplit {
                path: self.path.clone(),
                split: split.name.clone(),
                wanted: split.classes.len(),
                found: format!("{} classes such as '{}'", self.classes.len(), shown.join("', '")),
            });
        }
        let superclass_names = self.classes.iter().filter_map(|class| self.superclasses.get(class).cloned());
        let names: Vec<String> = self.classes.iter().cloned().chain(superclass_names).collect();
        let missing = split.missing(&names);
        self.keep_classes(|class| kept.contains(class));
        Ok(missing)
    }

    /// Keeps the classes for which `keep` returns true, and numbers them anew.
    fn keep_classes(&mut self, keep: impl Fn(&str) -> bool) {
        // The new number of each class; `None` for one that is removed.
        let mut numbers = Vec::with_capacity(self.classes.len());
        let mut kept_count = 0;
        for class in &self.classes {
            let is_kept = keep(class);
            numbers.push(is_kept.then_some(kept_count));
            kept_count += u32::from(is_kept);
        }
        self.classes.retain(|class| keep(class));
        self.entries.retain_mut(|entry| {
            let number = numbers[entry.class as usize];
            entry.class = number.unwrap_or(entry.class);
            number.is_some()
        });
    }

    /// Keeps the first `per_class` images of every class.
    pub fn keep_first(&mut self, per_class: usize) {
        let mut counts = vec![0; self.classes.len()];
        self.entries.retain(|entry| {
            counts[entry.class as usize] += 1;
            counts[entry.class as usize] <= per_class
        });
    }

    /// Reads one image. Where many images are read, use [`Self::read_image_then`].
    pub fn read_image(&self, entry: &ImageEntry, channels: Channels) -> Result<DecodedImage, Unreadable> {
        self.read_image_then(entry, channels, |image| image)
    }

    /// Reads one image and calls `then` with it, as [`DecodedImage::decode_then`] does.
    pub fn read_image_then<T>(
        &self,
        entry: &ImageEntry,
        channels: Channels,
        then: impl FnOnce(DecodedImage) -> T,
    ) -> Result<T, Unreadable> {
        match self.contents(entry, channels)? {
            ImageContents::File(bytes) => {
                DecodedImage::decode_then(&bytes, channels, &DecodeLimits::default(), then)
            }
            ImageContents::Pixels(image) => Ok(then(image)),
        }
    }

    /// The BLAKE3 hash of the file of an image or of its archive member; `None` if it cannot be read or is not a file.
    pub fn file_hash(&self, entry: &ImageEntry) -> Option<blake3::Hash> {
        match &entry.location {
            ImageLocation::File(path) => {
                let mut hasher = blake3::Hasher::new();
                hasher.update_reader(std::fs::File::open(path).ok()?).ok()?;
                Some(hasher.finalize())
            }
            _ => match self.contents(entry, Channels::Colour).ok()? {
                ImageContents::File(bytes) => Some(blake3::hash(&bytes)),
                ImageContents::Pixels(_) => None,
            },
        }
    }

    /// The bytes of the file of an image or of its archive member; `None` if the image is not a file.
    pub fn file_bytes(&self, entry: &ImageEntry) -> Result<Option<bytes::Bytes>, Unreadable> {
        Ok(match self.contents(entry, Channels::Colour)? {
            ImageContents::File(bytes) => Some(bytes),
            ImageContents::Pixels(_) => None,
        })
    }

    /// The contents of an image before decoding. `channels` matters only for images that are stored as pixels.
    pub(crate) fn contents(
        &self,
        entry: &ImageEntry,
        channels: Channels,
    ) -> Result<ImageContents, Unreadable> {
        Ok(match &entry.location {
            ImageLocation::File(path) => ImageContents::File(folder::read(path)?.into()),
            ImageLocation::Range { offset, length } => {
                ImageContents::File(archive::read(&self.path, *offset, *length)?.into())
            }
            ImageLocation::Zip(member) => ImageContents::File(zip_archive::read(&self.path, member)?.into()),
            ImageLocation::Memory(bytes) => ImageContents::File(bytes.clone()),
            ImageLocation::Pixels(pixels) => ImageContents::Pixels(pixels.to_image(channels)),
            ImageLocation::Drawing { character, number } => {
                ImageContents::Pixels(drawings::image(*character, *number, channels)?)
            }
        })
    }
}

/// The contents of an image before decoding.
pub(crate) enum ImageContents {
    /// The bytes of an image file, which must be decoded.
    File(bytes::Bytes),
    /// Pixels that the source stores as such.
    Pixels(DecodedImage),
}
