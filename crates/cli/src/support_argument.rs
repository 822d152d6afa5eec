//! The argument DATA of `audit` and `fit`: labelled examples (the support set) as a folder of class folders, an
//! archive, a list of images or an embeddings file. Images are embedded, embeddings are read; both become
//! [`LabelledRows`], one row per example. Start with [`SupportArgument::open`].
//!
//! [`listing`] and [`audited_files`] describe the files of a data set in the plan of a repair, the file that
//! `trueshot audit --plan` writes.

use std::path::{Path, PathBuf};

use clap::Args;
use trueshot::Embeddings;
use trueshot::predictor::Predictor;
use trueshot::repair::ListedItem;
use trueshot_vision::labelled::RowImages;
use trueshot_vision::source::ImageEntry;
use trueshot_vision::{Collection, LabelledRows, SourceOptions};

use crate::backbone_argument::BackboneArgument;
use crate::images_argument::print_skipped;
use crate::messages::{say, shell_path};
use crate::progress::ProgressDisplay;

/// Extensions of embeddings files, in lower case.
const EMBEDDINGS_EXTENSIONS: [&str; 8] =
    ["safetensors", "npy", "npz", "parquet", "arrow", "feather", "ipc", "arrows"];

/// The labelled examples and how to embed them.
#[derive(Args)]
pub struct SupportArgument {
    /// Labelled examples: a folder of class folders, a .zip, .tar or .tar.gz of one, a .csv or .jsonl list of paths and labels,
    /// or embeddings (.safetensors, .npz, .npy, .parquet, .arrow)
    #[arg(value_name = "DATA")]
    pub support: PathBuf,
    #[command(flatten)]
    pub backbone: BackboneArgument,
    /// Read the labels of a .npy file from FILE (.npy) [default: NAME.labels.npy or NAME_labels.npy next to it; y.npy for X.npy]
    #[arg(long, alias = "labels", value_name = "FILE", help_heading = "Other options")]
    labels_of_rows: Option<PathBuf>,
}

/// Whether a path is an embeddings file by its extension.
pub fn is_embeddings(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    extension.is_some_and(|extension| EMBEDDINGS_EXTENSIONS.contains(&extension.as_str())) && !path.is_dir()
}

/// Reads an embeddings file. `labels` is the file with the labels of a .npy file; `None`: the one next to it.
pub fn read_embeddings(path: &Path, labels: Option<&Path>) -> trueshot::Result<Embeddings> {
    match labels {
        Some(labels) => Embeddings::read_pair(path, labels),
        None => Embeddings::read(path),
    }
}

impl SupportArgument {
    /// The files and folders that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.support].into_iter().chain(&self.labels_of_rows)
    }

    /// `--labels-of-rows` as it was given, with a space before it, for commands on the same rows.
    pub fn labels_as_given(&self) -> String {
        let option = |labels: &PathBuf| format!(" --labels-of-rows {}", shell_path(labels));
        self.labels_of_rows.as_ref().map_or_else(String::new, option)
    }

    /// Reads embeddings, or embeds images with a progress bar. Prints what was skipped and warnings about classes.
    pub fn open(&self) -> anyhow::Result<LabelledRows> {
        self.open_for(None)
    }

    /// Like [`SupportArgument::open`], for examples that are added to those of the classifier `earlier`: images are
    /// embedded with the backbone that it names.
    pub fn open_for(&self, earlier: Option<&Predictor>) -> anyhow::Result<LabelledRows> {
        let support = if is_embeddings(&self.support) { self.read()? } else { self.embed(earlier)? };
        print_notes(&support);
        Ok(support)
    }

    /// Reads the rows of an embeddings file.
    fn read(&self) -> anyhow::Result<LabelledRows> {
        self.backbone.check_unused(&self.support)?;
        let mut embeddings = read_embeddings(&self.support, self.labels_of_rows.as_deref())?;
        embeddings.check()?;
        Ok(embeddings.into())
    }

    /// Lists the images and embeds them.
    fn embed(&self, earlier: Option<&Predictor>) -> anyhow::Result<LabelledRows> {
        anyhow::ensure!(
            self.labels_of_rows.is_none(),
            "--labels-of-rows applies to embeddings, but {} contains images",
            self.support.display()
        );
        // The backbone is opened first, so that an error in it is reported before a large folder is listed.
        let given = match earlier.filter(|earlier| earlier.embedder().is_some()) {
            Some(earlier) => Some(self.backbone.find_for(earlier)?),
            None => self.backbone.find()?,
        };
        let collection = Collection::open(&self.support, SourceOptions::default())?;
        let backbone = given.map_or_else(|| self.backbone.find_default(&collection), Ok)?;
        let embedder = self.backbone.embedder(backbone, collection.entries().len())?;
        let progress = ProgressDisplay::counting(collection.entries().len() as u64, "images");
        let embedded = embedder.embed_collection(&collection, &progress);
        progress.finish();
        let embedded = embedded?;
        self.backbone.report_cache_problem(&embedder);
        Ok(LabelledRows::from_collection(collection, embedded))
    }
}

/// Prints which files were skipped, and which classes have no images.
fn print_notes(rows: &LabelledRows) {
    print_skipped(rows.skipped.iter());
    for note in notes(rows) {
        say!("note: {note}");
    }
}

/// Messages about classes that are empty or unreadable.
fn notes(rows: &LabelledRows) -> Vec<String> {
    let mut notes = Vec::new();
    let mut add = |names: Vec<String>, singular: &str, plural: &str| match names.len() {
        0 => {}
        1 => notes.push(format!("{} {singular}", names[0])),
        _ => notes.push(format!("{} {plural}: {}", names.len(), shortened(&names))),
    };
    add(empty_folders(rows), "is an empty folder", "folders are empty");
    add(unreadable_classes(rows), "has no readable image", "classes have no readable image");
    notes
}

/// The empty class folders, in quotes.
fn empty_folders(rows: &LabelledRows) -> Vec<String> {
    let folders = rows.images.iter().flat_map(|images| images.collection.empty_folders());
    folders.map(|folder| quoted(folder)).collect()
}

/// Classes all of whose images were skipped.
fn unreadable_classes(rows: &LabelledRows) -> Vec<String> {
    let listed = rows.images.iter().flat_map(|images| images.collection.classes());
    // The classes of embeddings are sorted by name.
    let has_no_row = |class: &&String| rows.embeddings.classes().binary_search(class).is_err();
    listed.filter(has_no_row).map(|class| format!("class {}", quoted(class))).collect()
}

/// The audited files, for the plan of a repair: [`listing`] with the BLAKE3 hashes of the files as they were embedded.
pub fn audited_files(images: &RowImages) -> Vec<ListedItem> {
    let mut files = listing(&images.collection);
    for (file, hash) in files.iter_mut().zip(images.hashes()) {
        file.hash = hash.map(|hash| blake3::Hash::from_bytes(hash).to_hex().to_string());
    }
    files
}

/// A name in quotes, with control characters escaped.
fn quoted(name: &str) -> String {
    format!("'{}'", trueshot::report::visible(name))
}

/// The first five names, and the number of others.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let first = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{first} and {more} more"),
        _ => first,
    }
}

/// The current items of a collection, in the order of its entries, including images that cannot be read. Other files
/// are left out, so that a report or a plan may be written into the folder.
pub fn listing(collection: &Collection) -> Vec<ListedItem> {
    let to_item = |entry: &ImageEntry| listed_item(&entry.item, collection.class_of(entry), entry.path());
    collection.entries().iter().map(to_item).collect()
}

/// An item of a plan, with the size and modification time of its file if it has one.
fn listed_item(item: &str, class: &str, path: Option<&Path>) -> ListedItem {
    let metadata = path.and_then(|path| std::fs::metadata(path).ok());
    let modified = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    let since_1970 = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    ListedItem {
        item: item.into(),
        class: Some(class.into()),
        size: metadata.map(|metadata| metadata.len()),
        modified: since_1970.and_then(|time| u64::try_from(time.as_nanos()).ok()),
        hash: None,
    }
}
