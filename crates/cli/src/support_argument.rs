//! SUPPORT: the labelled examples that `audit`, `fit` and others start from. A folder of class folders, an archive or a
//! list of pictures is embedded; a file of embeddings is read. What comes out is the same: rows with labels, and, where
//! there are pictures, the way back from a row to its picture.

use std::path::{Path, PathBuf};

use clap::Args;
use trueshot::Embeddings;
use trueshot::repair::Listed;
use trueshot_vision::embedder::EmbeddedCollection;
use trueshot_vision::source::ImageEntry;
use trueshot_vision::{Collection, Skipped, SourceOptions};

use crate::backbone_argument::BackboneArgument;
use crate::images_argument::print_skipped;
use crate::messages::say;
use crate::progress::ProgressDisplay;

/// Endings of files that hold rows rather than pictures.
const EMBEDDINGS: [&str; 8] = ["safetensors", "npy", "npz", "parquet", "arrow", "feather", "ipc", "arrows"];

/// The labelled examples and how to embed them.
#[derive(Args)]
pub struct SupportArgument {
    /// Labelled examples: a folder of class folders, a .tar or .tar.gz of one, a .csv or .jsonl list of paths and labels,
    /// or embeddings (.safetensors, .npz, .npy, .parquet, .arrow)
    #[arg(value_name = "SUPPORT")]
    pub support: PathBuf,
    /// Labels for a .npy file, if they are not next to it
    #[arg(long, value_name = "FILE")]
    labels_of_rows: Option<PathBuf>,
    #[command(flatten)]
    pub backbone: BackboneArgument,
}

/// Labelled examples that are ready to be worked on.
pub struct Support {
    /// Rows with labels, and with the names of their items where there are any.
    pub embeddings: Embeddings,
    /// The pictures behind the rows, if they are of pictures.
    pub pictures: Option<SupportPictures>,
    /// What could not be read and why.
    pub skipped: Vec<Skipped>,
}

/// The pictures behind the rows of a support set.
pub struct SupportPictures {
    /// Where they come from.
    pub collection: Collection,
    /// For every row the place of its picture among the collection's entries.
    entries: Vec<u32>,
    /// For every entry of the collection the BLAKE3 hash of its file as it was embedded.
    hashes: Vec<Option<[u8; 32]>>,
}

impl SupportPictures {
    /// Whether they are files in class folders.
    pub fn is_folder(&self) -> bool {
        is_folder(&self.collection)
    }

    /// What was audited, for a plan: as [`listing`], with the hashes of the files that were embedded.
    pub fn listing(&self) -> Vec<Listed> {
        let mut all = listing(&self.collection);
        for (listed, hash) in all.iter_mut().zip(&self.hashes) {
            listed.hash = hash.map(|hash| blake3::Hash::from_bytes(hash).to_hex().to_string());
        }
        all
    }

    /// The picture behind a row.
    pub fn entry(&self, row: usize) -> &ImageEntry {
        &self.collection.entries()[self.entries[row] as usize]
    }
}

/// Whether a path names rows rather than pictures.
pub fn is_embeddings(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    extension.is_some_and(|extension| EMBEDDINGS.contains(&extension.as_str())) && !path.is_dir()
}

impl SupportArgument {
    /// Reads rows, or embeds pictures with progress on a terminal; says what was skipped and what looks odd.
    pub fn open(&self) -> anyhow::Result<Support> {
        let support = if is_embeddings(&self.support) { self.read()? } else { self.embed()? };
        support.tell();
        Ok(support)
    }

    fn read(&self) -> anyhow::Result<Support> {
        let mut embeddings = match &self.labels_of_rows {
            Some(labels) => Embeddings::read_pair(&self.support, labels)?,
            None => Embeddings::read(&self.support)?,
        };
        embeddings.check()?;
        Ok(Support { embeddings, pictures: None, skipped: Vec::new() })
    }

    fn embed(&self) -> anyhow::Result<Support> {
        // A backbone that cannot be opened is said before a large folder is looked through.
        let given = self.backbone.open()?;
        let collection = Collection::open(&self.support, SourceOptions::default())?;
        let embedder = given.map_or_else(|| self.backbone.open_default(&collection), Ok)?;
        let progress = ProgressDisplay::counting(collection.entries().len() as u64, "images");
        let embedded = embedder.embed_collection(&collection, &progress);
        progress.finish();
        let EmbeddedCollection { embeddings, entries, skipped, hashes, .. } = embedded?;
        self.backbone.report_cache_problem(&embedder);
        let pictures = SupportPictures { collection, entries, hashes };
        Ok(Support { embeddings, pictures: Some(pictures), skipped })
    }
}

impl Support {
    /// Says what was skipped, and which classes are too small to say much.
    fn tell(&self) {
        print_skipped(self.skipped.iter());
        for note in self.notes() {
            say!("note: {note}");
        }
    }

    /// What somebody who looks at the classes should know.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut add = |names: Vec<String>, one: &str, many: &str| match names.len() {
            0 => {}
            1 => notes.push(format!("{} {one}", names[0])),
            _ => notes.push(format!("{} {many}: {}", names.len(), shortened(&names))),
        };
        add(self.empty_folders(), "is an empty folder", "folders are empty");
        add(self.unreadable_classes(), "has no readable image", "classes have no readable image");
        let one = self.classes_of_one();
        add(
            one,
            "has a single item, whose label cannot be checked",
            "classes have a single item, whose label cannot be checked",
        );
        notes
    }

    fn empty_folders(&self) -> Vec<String> {
        let folders = self.pictures.iter().flat_map(|pictures| pictures.collection.empty_folders());
        folders.map(|folder| shown(folder)).collect()
    }

    /// Classes whose every picture was skipped.
    fn unreadable_classes(&self) -> Vec<String> {
        let listed = self.pictures.iter().flat_map(|pictures| pictures.collection.classes());
        let is_gone = |class: &&String| self.embeddings.classes().binary_search(class).is_err();
        listed.filter(is_gone).map(|class| format!("class {}", shown(class))).collect()
    }

    fn classes_of_one(&self) -> Vec<String> {
        let classes = self.embeddings.classes().iter().enumerate();
        let of_one = classes.filter(|(class, _)| self.embeddings.rows_of(*class).len() == 1);
        of_one.map(|(_, name)| format!("class {}", shown(name))).collect()
    }
}

/// A name in quotes, whatever is in it.
fn shown(name: &str) -> String {
    format!("'{}'", trueshot::report::visible(name))
}

/// The first few names.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let first = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{first} and {more} more"),
        _ => first,
    }
}

/// The items of a collection as they are now: its entries in their order, then the files that were skipped.
pub fn listing(collection: &Collection) -> Vec<Listed> {
    let entries = collection.entries().iter().map(|entry| {
        let class = Some(collection.classes()[entry.class as usize].clone());
        listed(&entry.item, class, entry.path())
    });
    let skipped = collection.skipped().iter();
    let skipped = skipped.map(|one| listed(&one.item, None, Some(&collection.path().join(&one.item))));
    entries.chain(skipped).collect()
}

fn listed(item: &str, class: Option<String>, path: Option<&Path>) -> Listed {
    let found = path.and_then(|path| std::fs::metadata(path).ok());
    let modified = found.as_ref().and_then(|found| found.modified().ok());
    let since_1970 = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Listed {
        item: item.into(),
        class,
        size: found.map(|found| found.len()),
        modified: since_1970.and_then(|time| u64::try_from(time.as_nanos()).ok()),
        hash: None,
    }
}

/// Whether a collection is a folder of class folders, whose files can be moved.
pub fn is_folder(collection: &Collection) -> bool {
    collection.path().is_dir() && collection.entries().iter().all(|entry| entry.path().is_some())
}
