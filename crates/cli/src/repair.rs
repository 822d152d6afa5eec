//! `trueshot repair`: applies the changes of an audit plan, and reverts them. Start with [`run`].
//!
//! A plan ([`RepairPlan`]) is the file that `trueshot audit --plan` writes: the changes (an item gets another label or
//! goes into quarantine, the folder `_quarantine`) and a listing of all audited items, with which the data are compared
//! before anything is changed. There are three kinds of data:
//!
//! - a folder of class folders: its files are moved ([`Arguments::repair_in_place`]) or copied
//!   ([`Arguments::repair_pictures`]);
//! - images of an archive or a list: they are copied (`repair_pictures`);
//! - an embeddings file: its rows are written to another file ([`Arguments::repair_rows`]).
//!
//! All of them can also write lists of the cleaned labels, and only list the changes if no output is asked for. Moves
//! in place are recorded in an undo file ([`Journal`]) before the first one is made. With it, the same command finishes
//! an interrupted repair, and `--undo` reverts it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use trueshot::Embeddings;
use trueshot::embeddings::Writer;
use trueshot::repair::{
    self, CollectionKind, CopyLayout, FileContents, Journal, Labelled, ListedItem, LockedFolder, Move,
    Outcome, RepairPlan,
};
use trueshot::report::{Column, TextTable, visible};
use trueshot_vision::source::{ImageEntry, is_built_in};
use trueshot_vision::{Collection, SourceOptions};

use crate::messages::{hinted, say, shell_path};
use crate::output::{WidthArgument, check_distinct, check_writable, is_same_file, print_escaped, write_file};
use crate::progress::ProgressDisplay;
use crate::support_argument::{listing, read_embeddings};

/// Apply the changes of an audit plan: move mislabelled items to their class, quarantine outliers
///
/// PLAN is a file written by `trueshot audit --plan`; you may edit or delete lines. Without an option, the changes are
/// listed and nothing is changed. --into writes a repaired copy and leaves the original as it is; images of a list are
/// copied to class folders. --in-place moves files and is for folders only; it writes an undo file first: if it is
/// interrupted, the same command finishes the work, and --undo reverts it. No file is ever deleted or overwritten: items
/// that belong to no class go to _quarantine/, and a file whose name is already used gets a number appended. trueshot
/// ignores _quarantine/, but other programs, such as torchvision's ImageFolder, read it as a class: move it away for them.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot repair plan.jsonl
  trueshot repair plan.jsonl --into photos-clean
  trueshot repair plan.jsonl --into photos-clean.zip
  trueshot repair plan.jsonl --in-place
  trueshot repair --undo plan.undo.jsonl
  trueshot repair plan.jsonl --labels labels.csv --label-studio tasks.json")]
pub struct Arguments {
    /// Plan file written by `trueshot audit --plan`
    #[arg(value_name = "PLAN", required_unless_present = "undo")]
    plan: Option<PathBuf>,
    /// Write a repaired copy to a new folder or .zip archive; for embeddings, to a .safetensors file
    #[arg(long, value_name = "DIR|FILE", conflicts_with = "in_place")]
    into: Option<PathBuf>,
    /// Move the original files of a folder
    #[arg(long)]
    in_place: bool,
    /// Revert an --in-place repair, given its undo file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "into", "in_place", "labels", "label_studio", "fiftyone", "labels_of_rows"])]
    undo: Option<PathBuf>,
    /// Write the cleaned labels as CSV: path, label and previous label
    #[arg(long, value_name = "FILE", help_heading = "Lists of cleaned labels")]
    labels: Option<PathBuf>,
    /// Write the cleaned labels as tasks for Label Studio
    #[arg(long, value_name = "FILE", help_heading = "Lists of cleaned labels")]
    label_studio: Option<PathBuf>,
    /// Write the cleaned labels for FiftyOne (FiftyOneImageClassificationDataset)
    #[arg(long, value_name = "FILE", help_heading = "Lists of cleaned labels")]
    fiftyone: Option<PathBuf>,
    /// Write the undo file of --in-place to FILE [default: PLAN with the extension .undo.jsonl]
    #[arg(long, value_name = "FILE", help_heading = "Other options", requires = "in_place")]
    undo_file: Option<PathBuf>,
    /// Read the audited data from PATH, if it was moved since the audit
    #[arg(long, value_name = "PATH", help_heading = "Other options")]
    root: Option<PathBuf>,
    /// Read the labels of an audited .npy file from FILE (.npy), as the audit did
    #[arg(long, value_name = "FILE", help_heading = "Other options")]
    labels_of_rows: Option<PathBuf>,
    #[command(flatten)]
    width: WidthArgument,
}

/// Runs `trueshot repair`: reads the plan, checks the options against it, and repairs the data of the plan's kind.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(path) = &arguments.undo {
        return arguments.undo(path);
    }
    let path = arguments.plan.as_ref().context("no plan file was given")?;
    let files = [&arguments.labels, &arguments.label_studio, &arguments.fiftyone];
    check_writable(files.into_iter().flatten())?;
    check_distinct(files.into_iter().flatten().chain(&arguments.into).chain(&arguments.undo_file))?;
    if path.is_dir() {
        return Err(hinted(
            format!("{} is a folder, not a plan", path.display()),
            format!("write a plan first: trueshot audit {} --plan plan.jsonl", shell_path(path)),
        ));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|source| trueshot::Error::Read { path: path.into(), source })?;
    let mut plan = RepairPlan::parse(&text, path)?;
    if let Some(root) = &arguments.root {
        plan.header.root = std::fs::canonicalize(root).unwrap_or_else(|_| root.clone());
        plan.header.kind = kind_at(&plan.header.root, plan.header.kind)?;
    }
    if !plan.header.root.exists() && !is_built_in(&plan.header.root) {
        return Err(hinted(
            format!("{} does not exist", plan.header.root.display()),
            "if the audited data were moved, give their new path with --root",
        ));
    }
    anyhow::ensure!(
        arguments.labels_of_rows.is_none() || plan.header.kind == CollectionKind::Embeddings,
        "--labels-of-rows applies to embeddings, but this plan is for {}",
        kind_in_words(&plan)
    );
    if arguments.in_place && plan.header.kind != CollectionKind::Folder {
        return Err(hinted(
            format!(
                "--in-place moves files between class folders, but this plan is for {}",
                kind_in_words(&plan)
            ),
            match plan.header.kind {
                CollectionKind::Embeddings => {
                    "write a copy with --into FILE.safetensors, or a list with --labels FILE"
                }
                _ => UNPACK_HINT,
            },
        ));
    }
    if let Some(into) = &arguments.into {
        check_destination(into, plan.header.kind)?;
    }
    for list in files.into_iter().flatten() {
        anyhow::ensure!(
            ![&plan.header.root, path]
                .into_iter()
                .chain(&arguments.labels_of_rows)
                .any(|input| is_same_file(list, input)),
            "{} is an input of this repair: write the list to another file",
            list.display()
        );
    }
    match plan.header.kind {
        CollectionKind::Embeddings => arguments.repair_rows(plan),
        CollectionKind::Folder if arguments.in_place => arguments.repair_in_place(&plan, path, &text),
        CollectionKind::Folder | CollectionKind::ImageList => {
            arguments.repair_pictures(&plan).map_err(|error| match error.downcast_ref() {
                // The folder may differ from the plan because of an in-place repair: then say that instead.
                Some(trueshot::Error::CollectionChanged { .. }) => {
                    arguments.earlier_repair_error(&plan, path, &text).unwrap_or(error)
                }
                _ => error,
            })
        }
    }
}

/// The hint for a plan whose files cannot be moved.
const UNPACK_HINT: &str = "write a copy with --into DIR|FILE.zip or a list with --labels FILE; or unpack an archive and \
                           give its folder with --root";

/// Extensions of archives that cannot be written.
const OTHER_ARCHIVES: [&str; 16] = [
    ".tar", ".tar.gz", ".tgz", ".gz", ".tar.bz2", ".tbz", ".tbz2", ".bz2", ".tar.xz", ".txz", ".xz",
    ".tar.zst", ".tzst", ".zst", ".7z", ".rar",
];

/// The kind of a data set that was moved (`--root`): a folder may have become an archive, or an archive a folder.
fn kind_at(root: &Path, planned: CollectionKind) -> anyhow::Result<CollectionKind> {
    Ok(match planned {
        CollectionKind::Folder if root.is_file() => CollectionKind::ImageList,
        CollectionKind::ImageList if root.is_dir() => {
            match Collection::open(root, SourceOptions::default())?.has_own_files() {
                true => CollectionKind::Folder,
                false => CollectionKind::ImageList,
            }
        }
        unchanged => unchanged,
    })
}

/// Fails if the extension of the destination belongs to another format than the one that is written, or if it is a file
/// of embeddings that already exists. Functions that copy images check themselves that the destination is new.
fn check_destination(into: &Path, kind: CollectionKind) -> anyhow::Result<()> {
    let name = into.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    if kind == CollectionKind::Embeddings && !name.ends_with(".safetensors") {
        return Err(hinted(
            format!("--into {}: embeddings are written as .safetensors", into.display()),
            format!("use --into {}", shell_path(&into.with_extension("safetensors"))),
        ));
    }
    if kind == CollectionKind::Embeddings && into.exists() {
        anyhow::bail!("--into {}: it already exists", into.display());
    }
    if kind != CollectionKind::Embeddings && OTHER_ARCHIVES.iter().any(|ending| name.ends_with(ending)) {
        anyhow::bail!("--into {}: --into writes a folder or a .zip", into.display());
    }
    Ok(())
}

/// The kind of the plan's data, in words.
fn kind_in_words(plan: &RepairPlan) -> &'static str {
    match plan.header.kind {
        CollectionKind::Folder => "a folder",
        CollectionKind::ImageList => "images in a list or an archive",
        CollectionKind::Embeddings => "embeddings",
    }
}

impl Arguments {
    /// The undo file of an in-place repair with the plan file `plan`.
    fn undo_file(&self, plan: &Path) -> PathBuf {
        self.undo_file.clone().unwrap_or_else(|| plan.with_extension("undo.jsonl"))
    }

    /// Reverts the moves in an undo file, and removes the file when all moves are reverted.
    fn undo(&self, path: &Path) -> anyhow::Result<()> {
        let open = || -> anyhow::Result<Journal> {
            let journal = Journal::open(path)?;
            Ok(match &self.root {
                Some(root) => journal.with_root(root.clone()),
                None => journal,
            })
        };
        let folder = LockedFolder::open(open()?.root())?;
        // Read again: another process may have finished with this file before it released the lock.
        let journal = open()?;
        let progress = ProgressDisplay::counting(journal.moves().len() as u64, "files");
        let outcome = journal.undo(&folder, &progress);
        progress.finish();
        let outcome = outcome?;
        report_moves(&folder, &outcome, "moved back", "already back", "");
        if !outcome.problems.is_empty() {
            anyhow::bail!(
                "{} of {} files could not be moved back; {} is kept: run the same command again to retry",
                outcome.problems.len(),
                journal.moves().len(),
                path.display()
            );
        }
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Moves the files of a folder, or finishes an interrupted repair of the same plan. `path` and `text` are the path
    /// and the text of the plan file; an undo file belongs to this plan if it was made from the same text.
    fn repair_in_place(&self, plan: &RepairPlan, path: &Path, text: &str) -> anyhow::Result<()> {
        let root = &plan.header.root;
        let folder = LockedFolder::open(root)?;
        let undo = self.undo_file(path);
        // The moves: those of an interrupted repair, or new ones, which are written to the undo file first.
        let journal = match undo.exists() {
            true => {
                let journal = Journal::open(&undo)?;
                if !journal.is_of(text) {
                    anyhow::bail!(
                        "{} is the undo file of another plan; give another --undo-file, or undo that one first",
                        undo.display()
                    );
                }
                journal.with_root(root.clone())
            }
            false => {
                let collection = Collection::open(root, SourceOptions::default())?;
                check_unchanged(plan, &collection)?;
                warn_of_new_classes(plan, collection.empty_folders());
                let journal = Journal::new(root, text, repair::moves(plan, repair::files_below(root)?));
                if let Some(problem) = journal.obstacles(&folder).first() {
                    return Err(hinted(
                        format!("nothing was moved: {problem}"),
                        "--into DIR writes a repaired copy instead",
                    ));
                }
                journal.write(&undo)?;
                journal
            }
        };
        let progress = ProgressDisplay::counting(journal.moves().len() as u64, "files");
        let outcome = journal.apply(&folder, &progress);
        progress.finish();
        let outcome = outcome?;
        let quarantine = match quarantined(journal.moves()) {
            0 => String::new(),
            count => format!(", {}", in_quarantine(count, root)),
        };
        report_moves(&folder, &outcome, "moved", "already moved", &quarantine);
        say!("hint: revert with `trueshot repair --undo {}`", shell_path(&undo));
        if !outcome.problems.is_empty() {
            let (failed, all) = (outcome.problems.len(), journal.moves().len());
            anyhow::bail!("{failed} of {all} files could not be moved; run the same command again to retry");
        }
        let base = self.base(root);
        self.write_labels(&labelled_items(plan, journal.moves(), base.as_deref(), &|_| None))
    }

    /// The error if an in-place repair of this plan was interrupted or finished before; `None` if there was none.
    fn earlier_repair_error(&self, plan: &RepairPlan, path: &Path, text: &str) -> Option<anyhow::Error> {
        let undo = self.undo_file(path);
        let journal = Journal::open(&undo).ok().filter(|journal| journal.is_of(text))?;
        let journal = journal.with_root(plan.header.root.clone());
        let (root, undo) = (plan.header.root.display(), shell_path(&undo));
        let state = match (journal.pending(), journal.moves().len()) {
            (0, _) => "this plan was already applied in place".to_string(),
            (pending, all) => format!(
                "a repair was interrupted ({} of {all} files moved): run it again with --in-place",
                all - pending
            ),
        };
        Some(anyhow::anyhow!("{root}: {state}; revert with `trueshot repair --undo {undo}`"))
    }

    /// Repairs a copy of a folder, a list or an archive, writes lists of labels, or, without outputs, lists the
    /// changes.
    fn repair_pictures(&self, plan: &RepairPlan) -> anyhow::Result<()> {
        let root = &plan.header.root;
        let collection = Collection::open(root, SourceOptions::default())?;
        check_unchanged(plan, &collection)?;
        warn_of_new_classes(plan, collection.empty_folders());
        if let (CollectionKind::ImageList, Some(into)) = (plan.header.kind, &self.into) {
            return self.write_labels(&self.copy_pictures(plan, &collection, into)?);
        }
        let moves = match plan.header.kind {
            CollectionKind::Folder => repair::moves(plan, repair::files_below(root)?),
            _ => Vec::new(),
        };
        if let Some(into) = &self.into {
            copy_folder(plan, into, &moves)?;
        } else if !self.writes_labels() {
            return print_escaped(&changes_text(plan, &moves, self.width.limit(None)));
        }
        // The file of every image, by the name and the class of the item.
        let paths: HashMap<(&str, u32), PathBuf> = collection
            .entries()
            .iter()
            .filter_map(|entry| Some(((entry.item.as_str(), entry.class), entry.path()?.to_owned())))
            .collect();
        let class = |name: &String| collection.classes().binary_search(name).ok().map(|class| class as u32);
        let file_of =
            |listed: &ListedItem| paths.get(&(listed.item.as_str(), class(listed.class.as_ref()?)?)).cloned();
        self.write_labels(&labelled_items(plan, &moves, self.base(root).as_deref(), &file_of))
    }

    /// The folder that paths in lists of labels are below, if files are moved or copied: the copy or the repaired
    /// folder. `None` if files stay where they are.
    fn base(&self, root: &Path) -> Option<PathBuf> {
        match (&self.into, self.in_place) {
            // Paths within the archive.
            (Some(into), _) if repair::is_zip(into) => Some(PathBuf::new()),
            (Some(into), _) => Some(std::fs::canonicalize(into).unwrap_or_else(|_| into.clone())),
            (None, true) => Some(root.to_owned()),
            (None, false) => None,
        }
    }

    /// Copies the images of a list or an archive, and returns their labels and their paths in the copy.
    fn copy_pictures(
        &self,
        plan: &RepairPlan,
        collection: &Collection,
        into: &Path,
    ) -> anyhow::Result<Vec<Labelled>> {
        let layout = match collection.is_archive() {
            true => CopyLayout::ClassFolders,
            false if collection.has_own_files() => CopyLayout::ByLabel,
            false => {
                return Err(hinted(
                    format!(
                        "{}: its images are not files, so --into cannot copy them",
                        collection.path().display()
                    ),
                    "write a list with --labels FILE",
                ));
            }
        };
        // `copies`, `labelled` and the listing of the plan have one element per item, in the same order.
        let copies = repair::copies(plan, layout)?;
        let mut labelled = labelled_items(plan, &[], None, &|_| None);
        let entries = entries_by_name(collection);
        let contents = |index: usize| {
            let Labelled { item, was, .. } = &labelled[index];
            let entry = entries[&(item.as_str(), was.as_str())];
            if let Some(path) = entry.path() {
                return Ok(FileContents::Path(path.to_owned()));
            }
            match collection.file_bytes(entry) {
                Ok(Some(bytes)) => Ok(FileContents::Bytes(bytes.to_vec())),
                Ok(None) => Err(std::io::Error::other("not a file")),
                Err(reason) => Err(std::io::Error::other(reason.to_string())),
            }
        };
        let progress = ProgressDisplay::counting(copies.len() as u64, "files");
        let files = repair::copy_items(&copies, &contents, into, &progress);
        progress.finish();
        let files = files?;
        if let Some(first) = collection.skipped().first() {
            let (count, first) = (collection.skipped().len(), visible(&first.item));
            say!("warning: not copied, because not readable as images: {count}, such as {first}");
        }
        report_copy(into, files, &labelled);
        // The lists of labels name the copies.
        let base = self.base(&plan.header.root).unwrap_or_default();
        for (item, copy) in labelled.iter_mut().zip(&copies) {
            item.path = base.join(&copy.to).to_string_lossy().into_owned();
            item.item = copy.to.clone();
        }
        Ok(labelled)
    }

    /// Writes the rows of an embeddings file with their new labels, lists of labels, or, without outputs, lists the
    /// changes.
    fn repair_rows(&self, mut plan: RepairPlan) -> anyhow::Result<()> {
        let root = plan.header.root.clone();
        let mut data = read_embeddings(&root, self.labels_of_rows.as_deref())?;
        data.check()?;
        if plan.header.fingerprint.as_deref() != Some(data.fingerprint().to_string().as_str()) {
            let problem = "its rows or labels differ".into();
            return Err(trueshot::Error::CollectionChanged { root, problem }.into());
        }
        let listed = |row: usize| ListedItem {
            item: data.item(row).map_or_else(|| format!("row {row}"), str::to_string),
            class: Some(data.classes()[data.labels()[row] as usize].clone()),
            ..ListedItem::default()
        };
        // A plan for embeddings lists no items, because the fingerprint stands for all rows and labels. The check then
        // only concerns the changes.
        plan.listing = (0..data.len()).map(listed).collect();
        plan.check(&plan.listing, &|_| None)?;
        warn_of_new_classes(&plan, &[]);
        let labelled = labelled_items(&plan, &[], None, &|_| None);
        if let Some(into) = &self.into {
            write_rows(&data, &labelled, into)?;
        } else if !self.writes_labels() {
            return print_escaped(&changes_text(&plan, &[], self.width.limit(None)));
        }
        self.write_labels(&labelled)
    }

    /// Whether a list of labels is an output.
    fn writes_labels(&self) -> bool {
        self.labels.is_some() || self.label_studio.is_some() || self.fiftyone.is_some()
    }

    /// Writes the lists of labels that were asked for.
    fn write_labels(&self, labelled: &[Labelled]) -> anyhow::Result<()> {
        let (changed, quarantined) = changed_and_quarantined(labelled);
        let kept = labelled.len() - quarantined;
        let report = |path: &Path, counted: String, in_quarantine: &str| match quarantined {
            0 => say!("{}: {counted}, {changed} changed", path.display()),
            _ => say!(
                "{}: {counted}, {changed} changed, {quarantined} in quarantine {in_quarantine}",
                path.display()
            ),
        };
        if let Some(path) = &self.labels {
            let with_relative_paths: Vec<Labelled> =
                labelled.iter().map(|item| relative(item, path)).collect();
            write_file(path, &repair::labels_csv(&with_relative_paths))?;
            report(path, format!("{kept} labels"), "left out");
        }
        if let Some(path) = &self.label_studio {
            write_file(path, &repair::label_studio(labelled))?;
            report(path, format!("{} tasks", labelled.len()), "without a label");
        }
        if let Some(path) = &self.fiftyone {
            write_file(path, &repair::fiftyone(labelled))?;
            report(path, format!("{kept} labels"), "left out");
        }
        Ok(())
    }
}

/// Copies a folder with its files at their new paths.
fn copy_folder(plan: &RepairPlan, into: &Path, moves: &[Move]) -> anyhow::Result<()> {
    let progress = ProgressDisplay::counting(plan.listing.len() as u64, "files");
    let copied = repair::copy(&plan.header.root, into, moves, &progress);
    progress.finish();
    let copied = copied?;
    for item in copied.left_out {
        say!("warning: {} is not copied: not a file, or a broken link", visible(&item));
    }
    report_copy(into, copied.files, &labelled_items(plan, &[], None, &|_| None));
    Ok(())
}

/// Prints what a copy contains.
fn report_copy(into: &Path, files: usize, labelled: &[Labelled]) {
    let (relabelled, quarantined) = changed_and_quarantined(labelled);
    let quarantine = in_quarantine(quarantined, into);
    say!("{}: {files} files, {relabelled} relabelled, {quarantine}", into.display());
}

/// The number of items with a new class, and of items in quarantine.
fn changed_and_quarantined(labelled: &[Labelled]) -> (usize, usize) {
    let changed = labelled.iter().filter(|item| item.label.as_ref().is_some_and(|label| *label != item.was));
    (changed.count(), labelled.iter().filter(|item| item.label.is_none()).count())
}

/// The number of moves into the quarantine.
fn quarantined(moves: &[Move]) -> usize {
    moves.iter().filter(|change| change.to.starts_with(repair::QUARANTINE)).count()
}

/// The number of files in quarantine and, if there are any, the folder.
fn in_quarantine(files: usize, root: &Path) -> String {
    match files {
        0 => "0 in quarantine".into(),
        _ => format!("{files} in quarantine ({})", root.join(repair::QUARANTINE).display()),
    }
}

/// Warns of classes that the plan creates, because a name may be misspelt. An empty folder counts as a class.
fn warn_of_new_classes(plan: &RepairPlan, empty_folders: &[String]) {
    let has_folder = |name: &str| {
        empty_folders.iter().any(|folder| {
            folder.strip_suffix(name).is_some_and(|parent| parent.is_empty() || parent.ends_with('/'))
        })
    };
    for class in plan.new_classes().iter().filter(|class| !has_folder(&class.name)) {
        let items = if class.items == 1 { "item" } else { "items" };
        let question = class.nearest.as_ref().map(|name| format!("; did you mean '{name}'?"));
        let question = question.unwrap_or_default();
        say!("warning: '{}' is a new class, for {} {items}{question}", class.name, class.items);
    }
}

/// The images of a collection by the name and the class of the item. The name alone does not identify an item: a list
/// may contain the same path with two labels.
fn entries_by_name<'a>(collection: &'a Collection) -> HashMap<(&'a str, &'a str), &'a ImageEntry> {
    let keyed = |entry: &'a ImageEntry| ((entry.item.as_str(), collection.class_of(entry)), entry);
    collection.entries().iter().map(keyed).collect()
}

/// Fails if a collection has changed since the audit.
fn check_unchanged(plan: &RepairPlan, collection: &Collection) -> trueshot::Result<()> {
    let entries = entries_by_name(collection);
    let hash = |listed: &ListedItem| {
        let entry = entries.get(&(listed.item.as_str(), listed.class.as_deref()?))?;
        Some(collection.file_hash(entry)?.to_hex().to_string())
    };
    plan.check(&listing(collection), &hash)
}

/// Prints how many files were moved, and which could not be moved. `moved` and `before` are the words for files that
/// were moved now and earlier, `more` follows the counts.
fn report_moves(folder: &LockedFolder, outcome: &Outcome, moved: &str, before: &str, more: &str) {
    for problem in &outcome.problems {
        say!("warning: not {moved}: {problem}");
    }
    let before = match outcome.already_moved {
        0 => String::new(),
        count => format!(" ({count} {before})"),
    };
    let files = if outcome.moved == 1 { "file" } else { "files" };
    say!("{}: {} {files} {moved}{before}{more}", folder.path().display(), outcome.moved);
}

/// Every item of the plan's listing with its label after the changes, and its path.
///
/// If files are moved or copied, `base` is the folder that they end up in, and `moves` says which of them get another
/// path below it. Otherwise (`base` is `None`), `file_of` returns the file of an item, if it has one.
fn labelled_items(
    plan: &RepairPlan,
    moves: &[Move],
    base: Option<&Path>,
    file_of: &dyn Fn(&ListedItem) -> Option<PathBuf>,
) -> Vec<Labelled> {
    let targets: HashMap<&str, &str> =
        moves.iter().map(|change| (change.from.as_str(), change.to.as_str())).collect();
    let changes: HashMap<(&str, &str, Option<usize>), Option<&String>> = plan
        .changes
        .iter()
        .map(|change| ((change.item.as_str(), change.from.as_str(), change.row), change.to.as_ref()))
        .collect();
    let with_new_label = |(row, listed): (usize, &ListedItem)| {
        // Items without a class are files other than images, in plans of earlier versions.
        let was = listed.class.clone()?;
        // The new label: that of the change if there is one (`None`: quarantine), otherwise the old one.
        let change = |row| changes.get(&(listed.item.as_str(), was.as_str(), row));
        let label = change(Some(row)).or_else(|| change(None)).map_or(Some(&was), |to| *to).cloned();
        // The name of the item after the moves, if files are moved.
        let moved = base.map(|_| targets.get(listed.item.as_str()).map_or(listed.item.as_str(), |to| *to));
        let item = moved.unwrap_or(&listed.item).to_string();
        let path = base.map(|base| base.join(&item)).or_else(|| file_of(listed));
        let path = path.map_or_else(|| item.clone(), |path| path.to_string_lossy().into_owned());
        Some(Labelled { item, path, label, was })
    };
    plan.listing.iter().enumerate().filter_map(with_new_label).collect()
}

/// The item with its path relative to the folder of the file `list`, if it is below that folder.
fn relative(item: &Labelled, list: &Path) -> Labelled {
    let folder = list.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let relative_path = std::fs::canonicalize(folder).ok().and_then(|folder| {
        let path = Path::new(&item.path).strip_prefix(folder).ok()?;
        Some(path.to_string_lossy().into_owned())
    });
    Labelled { path: relative_path.unwrap_or_else(|| item.path.clone()), ..item.clone() }
}

/// Writes the rows with their new labels, without those in quarantine.
fn write_rows(data: &Embeddings, labelled: &[Labelled], into: &Path) -> anyhow::Result<()> {
    let mut classes: Vec<String> = labelled.iter().filter_map(|item| item.label.clone()).collect();
    classes.sort();
    classes.dedup();
    let precision = data.features().precision();
    let notes: Vec<(&str, String)> =
        data.backbone().map(|name| ("backbone", name.to_string())).into_iter().collect();
    let mut writer = Writer::create(into, data.dim(), precision, &classes, &notes)?;
    for (row, item) in labelled.iter().enumerate() {
        let class = item.label.as_ref().and_then(|label| classes.binary_search(label).ok());
        if let Some(class) = class {
            writer.push(class as u32, &item.item, data.features().bytes_of(row..row + 1))?;
        }
    }
    let rows = writer.rows();
    writer.finish()?;
    say!("{}: {rows} rows, {} in quarantine", into.display(), labelled.len() - rows);
    Ok(())
}

/// The planned changes as text, and the options that make them. `moves` are the moves in a folder, empty for other
/// data.
fn changes_text(plan: &RepairPlan, moves: &[Move], width: Option<usize>) -> String {
    let targets: HashMap<&str, &str> =
        moves.iter().map(|change| (change.from.as_str(), change.to.as_str())).collect();
    let mut table = TextTable::new(vec![Column::Item, Column::Item, Column::Word]);
    // The effects on the accuracy were computed for the changes that the audit planned.
    let is_edited = plan.is_edited();
    for change in &plan.changes {
        let to = change.to.as_ref().map_or("quarantine".into(), |to| visible(to));
        let target = targets.get(change.item.as_str()).map_or(to, |target| visible(target));
        let effect = effect(change.effect.filter(|_| !is_edited));
        table.line([visible(&change.item), format!("-> {target}"), effect]);
    }
    let options: &[&str] = match plan.header.kind {
        CollectionKind::Folder => &[
            "--into DIR|FILE.zip  writes a repaired copy",
            "--in-place           moves the files, and can be undone",
            "--labels FILE        writes a list",
        ],
        CollectionKind::ImageList => {
            &["--into DIR|FILE.zip  writes a repaired copy", "--labels FILE        writes a list"]
        }
        CollectionKind::Embeddings => {
            &["--into FILE.safetensors  writes a repaired copy", "--labels FILE            writes a list"]
        }
    };
    let options: String = options.iter().map(|option| format!("  {option}\n")).collect();
    table.render(width) + &format!("{}\nnothing was changed\n{options}", plan.summary())
}

/// The difference that a change alone makes to the leave-one-out accuracy, in percentage points; empty if unknown.
fn effect(effect: Option<f64>) -> String {
    effect.map_or_else(String::new, |effect| format!("({:+.1} points alone)", 100.0 * effect))
}
