//! `trueshot audit`: finds wrong labels and suggests the right ones. Start with [`run`].
//!
//! The audit itself is in the library (`trueshot::audit`). This file opens the data, and writes the result as a table,
//! JSON, CSV, an HTML page and a plan, the file of label changes that `trueshot repair` carries out.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, ValueEnum};
use rayon::prelude::*;
use serde::Serialize;
use trueshot::audit::{self, Action, Audit, Certainty, MAX_NEIGHBOURS, Options};
use trueshot::progress::Progress;
use trueshot::repair::{CollectionKind, RepairPlan};
use trueshot::report::{self, AuditPage, AuditTable};
use trueshot_vision::{Channels, LabelledRows, thumbnail};

use crate::confirmed_labels::ConfirmedLabels;
use crate::messages::{ProblemsFound, say, shell_path};
use crate::output::{OutputArgument, WidthArgument, check_not_read, check_writable, write_file};
use crate::progress::ProgressDisplay;
use crate::support_argument::{SupportArgument, audited_files};
use crate::threads::Threads;

/// Find wrong labels and suggest the right ones
///
/// DATA is a folder of class folders, an archive of one, a list of paths and labels, or embeddings; classes may have
/// any size. Every item gets the probability that its label is wrong, its most probable classes, its most similar items,
/// and an action: relabel, quarantine, review or keep. The audit changes no file: --plan writes the actions to a file for
/// `trueshot repair`, which moves files only in folders and writes repaired copies of everything else.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot audit photos/
  trueshot audit photos/ --html audit.html --plan plan.jsonl
  trueshot audit photos/ --confirm owl/3.jpg
  trueshot audit features.safetensors --format json --check

Actions:
  relabel     the label is wrong, and another class is right
  quarantine  the label is wrong, and no class is certain enough (class
              uncertain) or none is right (none of these)
  review      neither is certain enough; `repair` leaves these items alone
  keep        the label is right
A label is suspect if it is more likely wrong than right.")]
pub struct Arguments {
    /// Also write an HTML report with thumbnails and a map to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the planned changes and the items to review to FILE, for `trueshot repair`
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Exit with status 3 if any label is suspect (more likely wrong than right)
    #[arg(long)]
    check: bool,
    /// Also show the items whose label is kept
    #[arg(long)]
    all: bool,
    /// Print the result in this format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    output: OutputArgument,
    /// Also write the whole result as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write one CSV line per item to FILE
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Expect this share of wrong labels, in percent [default: estimated]
    #[arg(long, value_name = "PERCENT", help_heading = "Judging labels", value_parser = parse_percent)]
    expected_noise: Option<f64>,
    /// Require this probability, from 0.5 to 1, for an action; leave other items to review [default: 0.8]
    #[arg(long, value_name = "P", help_heading = "Judging labels", value_parser = parse_certainty)]
    certainty: Option<f32>,
    /// Read confirmed labels from FILE, as JSON lines or item names; --confirm adds to it [default: .trueshot-confirmed in the folder]
    #[arg(long, value_name = "FILE", help_heading = "Judging labels")]
    confirmed: Option<PathBuf>,
    /// Mark the labels of these items as confirmed, for this and every later audit
    #[arg(long, value_name = "ITEM", help_heading = "Judging labels", num_args = 1..)]
    confirm: Vec<String>,
    /// Report N similar items per item
    #[arg(long, value_name = "N", help_heading = "Judging labels", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=MAX_NEIGHBOURS as i64))]
    neighbours: u16,
    #[command(flatten)]
    support: SupportArgument,
    #[command(flatten)]
    width: WidthArgument,
    #[command(flatten)]
    threads: Threads,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Json,
    Csv,
}

/// Parses a percentage, such as `6` or `6%`, into a share: 0.06.
fn parse_percent(text: &str) -> Result<f64, String> {
    let (number, has_sign) = number_and_percent_sign(text);
    match number.parse::<f64>() {
        // A share such as 0.06 is an easy mistake.
        Ok(percent) if percent > 0.0 && percent < 1.0 && !has_sign => {
            // The share in percent, rounded to two decimals.
            let meant = (percent * 1e4).round() / 100.0;
            Err(format!("expected percent: write {meant} for {meant} %, or {number}% for less than 1 %"))
        }
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a number from 0 to below 100".into()),
    }
}

/// Parses a probability from 0.5 to 1, which can also be given in percent: `0.8`, `80` or `80%`.
fn parse_certainty(text: &str) -> Result<f32, String> {
    let (number, has_sign) = number_and_percent_sign(text);
    match number.parse::<f32>() {
        Ok(probability) if !has_sign && (0.5..=1.0).contains(&probability) => Ok(probability),
        Ok(percent) if (50.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a number from 0.5 to 1, or 50% to 100%".into()),
    }
}

/// A number without its percent sign, and whether it had one.
pub fn number_and_percent_sign(text: &str) -> (&str, bool) {
    let text = text.trim();
    match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), true),
        None => (text, false),
    }
}

/// The side of a thumbnail in pixels. Twice the displayed size would be sharper, but take four times the bytes.
const THUMBNAIL_SIDE: usize = 112;
/// The side of the enlarged images in the review, in pixels.
const ENLARGED_SIDE: usize = 320;
/// At most this many images are enlarged, the most suspicious first; more would make the page slow to open.
const MAX_ENLARGED: usize = 300;

/// Runs `trueshot audit`. With `--check`, suspect labels are an error ([`ProblemsFound`], exit status 3).
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let files = [&arguments.html, &arguments.json, &arguments.csv, &arguments.plan, &arguments.output.output];
    check_writable(files.into_iter().flatten())?;
    check_not_read(files.into_iter().flatten(), arguments.support.files().chain(&arguments.confirmed))?;
    let confirms = !arguments.confirm.is_empty();
    let path = &arguments.support.support;
    let mut confirmed = ConfirmedLabels::open(path, arguments.confirmed.as_ref(), confirms)?;
    arguments.threads.run(|| {
        let mut labelled = arguments.support.open()?;
        if confirms {
            confirmed.confirm(&arguments.confirm, path, &labelled.embeddings)?;
        }
        labelled.confirmed = confirmed.confirmed_rows(&labelled.embeddings);
        let audit = arguments.run_audit(&labelled)?;
        arguments.write(&labelled, &audit)?;
        let suspects = audit.counts.suspect;
        match arguments.check && suspects > 0 {
            true => Err(ProblemsFound::new(suspects, "suspect label").into()),
            false => Ok(()),
        }
    })
}

impl Arguments {
    /// Audits the labelled rows, with a progress bar.
    fn run_audit(&self, labelled: &LabelledRows) -> anyhow::Result<Audit> {
        let options = Options {
            certainty: self.certainty.map_or_else(Certainty::default, Certainty::of_actions),
            expected_noise: self.expected_noise,
            neighbours: usize::from(self.neighbours),
        };
        let progress = ProgressDisplay::counting(labelled.embeddings.len() as u64, "items");
        let audit = labelled.audit().options(options).progress(&progress).run();
        progress.finish();
        Ok(audit?)
    }

    /// Writes all files, then standard output: the files are complete even if the reader closes the pipe early.
    fn write(&self, labelled: &LabelledRows, audit: &Audit) -> anyhow::Result<()> {
        let plan = (self.html.is_some() || self.plan.is_some()).then(|| self.plan(labelled, audit));
        if let (Some(path), Some(plan)) = (&self.html, &plan) {
            write_file(path, &self.page(labelled, audit, plan)?)?;
        }
        if let Some(path) = &self.json {
            write_file(path, &audit_json(labelled, audit))?;
        }
        if let Some(path) = &self.csv {
            write_file(path, &report::audit_csv(audit))?;
        }
        if let (Some(path), Some(plan)) = (&self.plan, &plan) {
            write_file(path, &plan.to_text())?;
            say!("{}: {}", path.display(), plan.summary());
            if std::io::stderr().is_terminal() {
                let labels = self.support.labels_as_given();
                say!("next: `trueshot repair {}{labels}` shows what would move", shell_path(path));
            }
        }
        match self.format {
            Format::Table => {
                let width = self.width.limit(self.output.output.as_ref());
                self.output.write_text(&AuditTable::new(audit).all(self.all).width(width).render())
            }
            Format::Json => self.output.write_data(&audit_json(labelled, audit)),
            Format::Csv => self.output.write_data(&report::audit_csv(audit)),
        }
    }

    /// The plan for `trueshot repair`: the changes that the audit suggests, and all audited files.
    fn plan(&self, labelled: &LabelledRows, audit: &Audit) -> RepairPlan {
        let root =
            std::fs::canonicalize(&self.support.support).unwrap_or_else(|_| self.support.support.clone());
        // A plan is UTF-8. A path that is not UTF-8 needs `repair --root`.
        let root = PathBuf::from(root.to_string_lossy().into_owned());
        let files = labelled.images.as_ref().map(audited_files).unwrap_or_default();
        // The kind of the data decides how the plan can repair it.
        let kind = match &labelled.images {
            None => CollectionKind::Embeddings,
            Some(images) if images.is_folder() => CollectionKind::Folder,
            Some(_) => CollectionKind::ImageList,
        };
        RepairPlan::new(audit, &labelled.embeddings, kind, &root, files)
    }

    /// The HTML page, with thumbnails and a map: the items as points in the plane.
    fn page(&self, labelled: &LabelledRows, audit: &Audit, plan: &RepairPlan) -> anyhow::Result<String> {
        let data = &labelled.embeddings;
        let thumbnails = thumbnails(labelled, audit)?;
        let points = audit::map(data, &ProgressDisplay::counting(data.len() as u64, "items"))?;
        let title = format!("Audit of {}", display_name(&self.support.support));
        let notes = labelled.skipped.iter().map(ToString::to_string).collect();
        let (title, thumbnails, points) = (title.as_str(), &thumbnails[..], &points[..]);
        Ok(AuditPage { title, audit, data, plan, thumbnails, points, notes }.render())
    }
}

/// The audit as JSON, with the skipped items if there are any.
fn audit_json(labelled: &LabelledRows, audit: &Audit) -> String {
    #[derive(Serialize)]
    struct AuditWithSkipped<'a> {
        #[serde(flatten)]
        audit: &'a Audit,
        skipped: Vec<SkippedJson<'a>>,
    }
    #[derive(Serialize)]
    struct SkippedJson<'a> {
        item: &'a str,
        reason: String,
    }
    if labelled.skipped.is_empty() {
        return report::audit_json(audit);
    }
    let skipped = labelled.skipped.iter();
    let skipped =
        skipped.map(|file| SkippedJson { item: &file.item, reason: file.reason.to_string() }).collect();
    serde_json::to_string_pretty(&AuditWithSkipped { audit, skipped }).expect("plain data serialises") + "\n"
}

/// The last part of a path.
fn display_name(path: &Path) -> String {
    let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Thumbnails as data URIs, one entry per row: `None` for rows that the page does not show, and for images that have
/// been removed since they were embedded. Empty if the rows are not images. Made on all threads.
fn thumbnails(labelled: &LabelledRows, audit: &Audit) -> anyhow::Result<Vec<Option<String>>> {
    let Some(images) = &labelled.images else { return Ok(Vec::new()) };
    let rows = report::shown_rows(audit, &labelled.embeddings);
    let needs_attention = |row: &usize| audit.items[*row].action != Action::Keep;
    // The most suspicious images are enlarged, because the page asks the user to review them.
    let enlarged: HashSet<usize> =
        audit.ranking().into_iter().filter(needs_attention).take(MAX_ENLARGED).collect();
    let thumbnail = |row: usize| {
        let (collection, entry) = (&images.collection, images.entry(row));
        match enlarged.contains(&row) {
            true => {
                collection.read_image_then(entry, Channels::Colour, |image| image.to_data_uri(ENLARGED_SIDE))
            }
            false => thumbnail::data_uri(collection, entry, THUMBNAIL_SIDE),
        }
    };
    let progress = ProgressDisplay::counting(rows.len() as u64, "thumbnails");
    let done = AtomicU64::new(0);
    // Makes one thumbnail and reports progress, which fails after Ctrl-C.
    let make = |&row: &usize| {
        let uri = thumbnail(row).ok();
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress.check(done, rows.len() as u64).map(|()| (row, uri))
    };
    let made: trueshot::Result<Vec<(usize, Option<String>)>> = rows.par_iter().map(make).collect();
    progress.finish();
    let mut thumbnails = vec![None; labelled.embeddings.len()];
    for (row, uri) in made? {
        thumbnails[row] = uri;
    }
    Ok(thumbnails)
}
