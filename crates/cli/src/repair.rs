//! `trueshot repair`: applies the changes of an audit plan, and reverts them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use trueshot::Embeddings;
use trueshot::embeddings::Writer;
use trueshot::repair::{self, Journal, Kind, Labelled, Listed, LockedFolder, Move, Outcome, RepairPlan};
use trueshot::report::{Column, TextTable, visible};
use trueshot_vision::source::ImageEntry;
use trueshot_vision::{Collection, SourceOptions};

use crate::messages::{hinted, say};
use crate::output::{WidthArgument, check_writable, print_escaped, write_file};
use crate::progress::ProgressDisplay;
use crate::support_argument::listing;

/// Apply the changes of an audit plan: move mislabelled items to their class, quarantine outliers
///
/// PLAN is a file written by `trueshot audit --plan`; you may edit or delete lines. Without an option, the changes are
/// listed and nothing is changed. --into writes a repaired copy and leaves the original as it is. --in-place moves files
/// and writes an undo file first: if it is interrupted, the same command finishes the work, and --undo reverts it. No file
/// is ever deleted or overwritten: items that belong to no class go to _quarantine/, and a file whose name is already used
/// gets a number appended.
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
    /// Move the original files
    #[arg(long)]
    in_place: bool,
    /// Revert an --in-place repair, given its undo file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "into", "in_place"])]
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
    #[command(flatten)]
    width: WidthArgument,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(path) = &arguments.undo {
        return arguments.undo(path);
    }
    let path = arguments.plan.as_ref().context("no plan file was given")?;
    let files = [&arguments.labels, &arguments.label_studio, &arguments.fiftyone];
    check_writable(files.into_iter().flatten())?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| trueshot::Error::Read { path: path.into(), source })?;
    let mut plan = RepairPlan::parse(&text, path)?;
    if let Some(root) = &arguments.root {
        plan.header.root = std::fs::canonicalize(root).unwrap_or_else(|_| root.clone());
    }
    if arguments.in_place && plan.header.kind != Kind::Folder {
        anyhow::bail!("--in-place moves files between class folders, but this plan is for {}", kind(&plan));
    }
    match plan.header.kind {
        Kind::Embeddings => arguments.repair_rows(plan),
        Kind::Folder if arguments.in_place => arguments.repair_in_place(&plan, path, &text),
        Kind::Folder | Kind::Pictures => {
            arguments.repair_pictures(&plan).map_err(|error| match error.downcast_ref() {
                Some(trueshot::Error::CollectionChanged { .. }) => {
                    arguments.half_done(&plan, path, &text).unwrap_or(error)
                }
                _ => error,
            })
        }
    }
}

fn kind(plan: &RepairPlan) -> &'static str {
    match plan.header.kind {
        Kind::Folder => "a folder",
        Kind::Pictures => "images in a list or an archive",
        Kind::Embeddings => "embeddings",
    }
}

impl Arguments {
    fn undo_file(&self, plan: &Path) -> PathBuf {
        self.undo_file.clone().unwrap_or_else(|| plan.with_extension("undo.jsonl"))
    }

    /// Takes back the moves of an undo file, and removes the file when every move is undone.
    fn undo(&self, path: &Path) -> anyhow::Result<()> {
        let open = || -> anyhow::Result<Journal> {
            let journal = Journal::open(path)?;
            Ok(match &self.root {
                Some(root) => journal.with_root(root.clone()),
                None => journal,
            })
        };
        let folder = LockedFolder::open(open()?.root())?;
        // Read again: the process that held the lock before may have finished with this file.
        let journal = open()?;
        let progress = ProgressDisplay::counting(journal.moves().len() as u64, "files");
        let outcome = journal.undo(&folder, &progress);
        progress.finish();
        let outcome = outcome?;
        report_moves(&folder, &outcome, "moved back", "already back");
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

    /// Moves the files of a folder, or finishes a repair by the same plan that was interrupted.
    fn repair_in_place(&self, plan: &RepairPlan, path: &Path, text: &str) -> anyhow::Result<()> {
        let root = &plan.header.root;
        let folder = LockedFolder::open(root)?;
        let undo = self.undo_file(path);
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
                check(plan, &collection)?;
                let journal = Journal::new(root, text, repair::moves(plan, repair::files_below(root)?));
                if let Some(problem) = journal.obstacles(&folder).first() {
                    anyhow::bail!("nothing was moved: {problem}");
                }
                journal.write(&undo)?;
                journal
            }
        };
        let progress = ProgressDisplay::counting(journal.moves().len() as u64, "files");
        let outcome = journal.apply(&folder, &progress);
        progress.finish();
        let outcome = outcome?;
        report_moves(&folder, &outcome, "moved", "already moved");
        say!("hint: revert with `trueshot repair --undo {}`", undo.display());
        if !outcome.problems.is_empty() {
            let (failed, all) = (outcome.problems.len(), journal.moves().len());
            anyhow::bail!("{failed} of {all} files could not be moved; run the same command again to retry");
        }
        let base = self.base(root);
        self.write_labels(&labelled(plan, &plan.listing, journal.moves(), base.as_deref(), &|_| None))
    }

    /// The error to show if this plan's repair in place was interrupted.
    fn half_done(&self, plan: &RepairPlan, path: &Path, text: &str) -> Option<anyhow::Error> {
        let undo = self.undo_file(path);
        let journal = Journal::open(&undo).ok().filter(|journal| journal.is_of(text))?;
        let journal = journal.with_root(plan.header.root.clone());
        let (root, undo) = (plan.header.root.display(), undo.display());
        let state = match (journal.pending(), journal.moves().len()) {
            (0, _) => "this plan was already applied in place".to_string(),
            (pending, all) => format!(
                "a repair was interrupted ({} of {all} files moved): run it again with --in-place",
                all - pending
            ),
        };
        Some(anyhow::anyhow!("{root}: {state}; revert with `trueshot repair --undo {undo}`"))
    }

    fn repair_pictures(&self, plan: &RepairPlan) -> anyhow::Result<()> {
        let root = &plan.header.root;
        let collection = Collection::open(root, SourceOptions::default())?;
        check(plan, &collection)?;
        let moves = match plan.header.kind {
            Kind::Folder => repair::moves(plan, repair::files_below(root)?),
            _ => Vec::new(),
        };
        if let Some(into) = &self.into {
            self.copy(plan, into, &moves)?;
        } else if !self.writes_labels() {
            return print_escaped(&shown(plan, &moves, self.width.limit(None)));
        }
        let paths: HashMap<(&str, u32), PathBuf> = collection
            .entries()
            .iter()
            .filter_map(|entry| Some(((entry.item.as_str(), entry.class), entry.path()?.to_owned())))
            .collect();
        let class = |name: &String| collection.classes().binary_search(name).ok().map(|class| class as u32);
        let place =
            |listed: &Listed| paths.get(&(listed.item.as_str(), class(listed.class.as_ref()?)?)).cloned();
        self.write_labels(&labelled(plan, &plan.listing, &moves, self.base(root).as_deref(), &place))
    }

    /// The folder in which files lie after this, where they have moved.
    fn base(&self, root: &Path) -> Option<PathBuf> {
        match (&self.into, self.in_place) {
            // Paths within the archive.
            (Some(into), _) if repair::is_zip(into) => Some(PathBuf::new()),
            (Some(into), _) => Some(std::fs::canonicalize(into).unwrap_or_else(|_| into.clone())),
            (None, true) => Some(root.to_owned()),
            (None, false) => None,
        }
    }

    fn copy(&self, plan: &RepairPlan, into: &Path, moves: &[Move]) -> anyhow::Result<()> {
        if plan.header.kind != Kind::Folder {
            return Err(hinted(
                format!("--into copies class folders, but this plan is for {}", kind(plan)),
                "unpack the archive and audit the folder, or write a list with --labels",
            ));
        }
        let progress = ProgressDisplay::counting(plan.listing.len() as u64, "files");
        let copied = repair::copy(&plan.header.root, into, moves, &progress);
        progress.finish();
        let copied = copied?;
        for item in copied.left_out {
            say!("warning: {} is not copied: not a file, or a broken link", visible(&item));
        }
        let quarantined = moves.iter().filter(|one| one.to.starts_with(repair::QUARANTINE)).count();
        let moved = moves.len() - quarantined;
        say!("{}: {} files, {moved} relabelled, {quarantined} in quarantine", into.display(), copied.files);
        Ok(())
    }

    fn repair_rows(&self, mut plan: RepairPlan) -> anyhow::Result<()> {
        let root = plan.header.root.clone();
        let data = Embeddings::open(&root)?;
        if plan.header.fingerprint.as_deref() != Some(data.fingerprint().to_string().as_str()) {
            let problem = "its rows or labels differ".into();
            return Err(trueshot::Error::CollectionChanged { root, problem }.into());
        }
        let listed = |row: usize| Listed {
            item: data.item(row).map_or_else(|| format!("row {row}"), str::to_string),
            class: Some(data.classes()[data.labels()[row] as usize].clone()),
            ..Listed::default()
        };
        plan.listing = (0..data.len()).map(listed).collect();
        let rows = plan.listing.clone();
        plan.check(&rows, &|_| None)?;
        let labelled = labelled(&plan, &rows, &[], None, &|_| None);
        if let Some(into) = &self.into {
            write_rows(&data, &labelled, into)?;
        } else if !self.writes_labels() {
            return print_escaped(&shown(&plan, &[], self.width.limit(None)));
        }
        self.write_labels(&labelled)
    }

    fn writes_labels(&self) -> bool {
        self.labels.is_some() || self.label_studio.is_some() || self.fiftyone.is_some()
    }

    fn write_labels(&self, labelled: &[Labelled]) -> anyhow::Result<()> {
        if let Some(path) = &self.labels {
            let beside: Vec<Labelled> = labelled.iter().map(|one| relative(one, path)).collect();
            write_file(path, &repair::labels_csv(&beside))?;
        }
        if let Some(path) = &self.label_studio {
            write_file(path, &repair::label_studio(labelled))?;
        }
        if let Some(path) = &self.fiftyone {
            write_file(path, &repair::fiftyone(labelled))?;
        }
        Ok(())
    }
}

/// Refuses a collection that has changed since the audit.
fn check(plan: &RepairPlan, collection: &Collection) -> trueshot::Result<()> {
    let entries: HashMap<(&str, &str), &ImageEntry> = collection
        .entries()
        .iter()
        .map(|entry| ((entry.item.as_str(), collection.class_of(entry)), entry))
        .collect();
    let hash = |listed: &Listed| {
        let entry = entries.get(&(listed.item.as_str(), listed.class.as_deref()?))?;
        Some(collection.file_hash(entry)?.to_hex().to_string())
    };
    plan.check(&listing(collection), &hash)
}

/// Prints how many files were moved, and which could not be.
fn report_moves(folder: &LockedFolder, outcome: &Outcome, moved: &str, before: &str) {
    for problem in &outcome.problems {
        say!("warning: not {moved}: {problem}");
    }
    let before = match outcome.before {
        0 => String::new(),
        count => format!(" ({count} {before})"),
    };
    let files = if outcome.moved == 1 { "file" } else { "files" };
    say!("{}: {} {files} {moved}{before}", folder.path().display(), outcome.moved);
}

/// Every item with its label after the plan. Files lie below `base`, where they have moved.
fn labelled(
    plan: &RepairPlan,
    listing: &[Listed],
    moves: &[Move],
    base: Option<&Path>,
    place: &dyn Fn(&Listed) -> Option<PathBuf>,
) -> Vec<Labelled> {
    let targets: HashMap<&str, &str> = moves.iter().map(|one| (one.from.as_str(), one.to.as_str())).collect();
    let changes: HashMap<(&str, &str), Option<&String>> =
        plan.changes.iter().map(|one| ((one.item.as_str(), one.from.as_str()), one.to.as_ref())).collect();
    let one = |listed: &Listed| {
        let was = listed.class.clone()?;
        let label = changes.get(&(listed.item.as_str(), was.as_str())).map_or(Some(&was), |to| *to).cloned();
        let moved = base.map(|_| targets.get(listed.item.as_str()).map_or(listed.item.as_str(), |to| *to));
        let item = moved.unwrap_or(&listed.item).to_string();
        let path = base.map(|base| base.join(&item)).or_else(|| place(listed));
        let path = path.map_or_else(|| item.clone(), |path| path.to_string_lossy().into_owned());
        Some(Labelled { item, path, label, was })
    };
    listing.iter().filter_map(one).collect()
}

/// The same with its path as seen from a list, if the list lies above it.
fn relative(one: &Labelled, list: &Path) -> Labelled {
    let folder = list.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let inside = std::fs::canonicalize(folder).ok().and_then(|folder| {
        let path = Path::new(&one.path).strip_prefix(folder).ok()?;
        Some(path.to_string_lossy().into_owned())
    });
    Labelled { path: inside.unwrap_or_else(|| one.path.clone()), ..one.clone() }
}

/// Rows with their new labels, without those in quarantine.
fn write_rows(data: &Embeddings, labelled: &[Labelled], into: &Path) -> anyhow::Result<()> {
    let mut classes: Vec<String> = labelled.iter().filter_map(|one| one.label.clone()).collect();
    classes.sort();
    classes.dedup();
    let precision = data.features().precision();
    let notes: Vec<(&str, String)> =
        data.backbone().map(|name| ("backbone", name.to_string())).into_iter().collect();
    let mut writer = Writer::create(into, data.dim(), precision, &classes, &notes)?;
    for (row, one) in labelled.iter().enumerate() {
        let class = one.label.as_ref().and_then(|label| classes.binary_search(label).ok());
        if let Some(class) = class {
            writer.push(class as u32, &one.item, data.features().bytes_of(row..row + 1))?;
        }
    }
    let rows = writer.rows();
    writer.finish()?;
    say!("{}: {rows} rows, {} in quarantine", into.display(), labelled.len() - rows);
    Ok(())
}

/// What would be done.
fn shown(plan: &RepairPlan, moves: &[Move], width: Option<usize>) -> String {
    let targets: HashMap<&str, &str> = moves.iter().map(|one| (one.from.as_str(), one.to.as_str())).collect();
    let mut table = TextTable::new(vec![Column::Item, Column::Item, Column::Word]);
    for change in &plan.changes {
        let to = change.to.as_ref().map_or("quarantine".into(), |to| visible(to));
        let target = targets.get(change.item.as_str()).map_or(to, |target| visible(target));
        table.line([visible(&change.item), format!("-> {target}"), effect(change.effect)]);
    }
    let ways: &[&str] = match plan.header.kind {
        Kind::Folder => &[
            "--into DIR|FILE.zip  writes a repaired copy",
            "--in-place           moves the files, and can be undone",
            "--labels FILE        writes a list",
        ],
        Kind::Pictures => &["--labels FILE  writes a list"],
        Kind::Embeddings => &["--into FILE    writes a repaired copy", "--labels FILE  writes a list"],
    };
    let ways: String = ways.iter().map(|way| format!("  {way}\n")).collect();
    table.render(width) + &format!("{}\nnothing was changed\n{ways}", plan.summary())
}

fn effect(effect: Option<f64>) -> String {
    effect.map_or_else(String::new, |effect| format!("({:+.1} points alone)", 100.0 * effect))
}
