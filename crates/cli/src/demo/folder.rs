//! The first part of the demo: drawings in class folders, some of them in the wrong one, are audited and repaired. The
//! demo calls [`DemoFolder::draw`], then [`DemoFolder::audit`], whose result writes the page and the summary.
//!
//! The folders exist in memory only, unless the user asks for them ([`DemoFolder::write`]); the repair is planned and
//! counted, not carried out.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use trueshot::audit::{self, Action, Audit};
use trueshot::episode::{EpisodeSpec, Episodes, Sampler, Shots};
use trueshot::noise::{Noise, NoiseKind};
use trueshot::repair::{self, CollectionKind, ListedItem, RepairPlan};
use trueshot::report::{AuditPage, AuditTable};
use trueshot::rng::IndexSampler;
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::{Backbone, Embedder, ImageInput, LabelledRows, Omniglot};

use super::{class_name, drawing, embed};
use crate::messages::shell_word;

/// The class folders: characters of many strokes, because the audit would report drawings of few strokes as copies of
/// each other.
const CLASSES: [&str; 6] = ["Tengwar-06", "Tengwar-11", "Tengwar-16", "Tengwar-19", "Tengwar-20", "ULOG-24"];
/// Number of drawings per folder.
const DRAWINGS: usize = 10;
/// Share of the drawings that are in the wrong folder: one per folder.
const WRONG: f64 = 0.1;

/// A drawing in one of the folders.
struct SortedDrawing {
    /// The folder that it is in.
    folder: String,
    /// The folder that it belongs to.
    truth: String,
    /// The name of its file with its true class: `Tengwar-06-03.png`. The audit does not use it.
    file: String,
    png: Vec<u8>,
    /// The drawing as a data URI.
    thumbnail: String,
}

impl SortedDrawing {
    /// The name of the item in the audit: `FOLDER/FILE`.
    fn item(&self) -> String {
        format!("{}/{}", self.folder, self.file)
    }
}

/// Drawings in class folders, before the audit.
pub(super) struct DemoFolder {
    drawings: Vec<SortedDrawing>,
}

/// The drawings with their embeddings and the result of the audit, in the same order.
pub(super) struct AuditedFolder {
    drawings: Vec<SortedDrawing>,
    rows: LabelledRows,
    audit: Audit,
}

/// Checks that writing the drawings would overwrite nothing.
pub(super) fn check_absent(folder: &Path) -> anyhow::Result<()> {
    let is_free = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => !folder.exists(),
    };
    anyhow::ensure!(
        is_free,
        "{} exists and is not an empty folder; name one that does not exist yet",
        folder.display()
    );
    Ok(())
}

impl DemoFolder {
    /// Chooses the drawings and sorts them into folders. The sampler of few-shot episodes does both: its support set
    /// has [`DRAWINGS`] items per class, and symmetric noise gives a share [`WRONG`] of them the label of another
    /// class.
    pub(super) fn draw(backbone: &Backbone, seed: u64) -> anyhow::Result<Self> {
        let chosen = (0..Omniglot::sample().characters().len())
            .filter(|character| CLASSES.contains(&class_name(*character).as_str()));
        // The sampler takes embeddings; only their items and classes matter here.
        let characters = &embed(backbone, chosen)?;
        let spec = EpisodeSpec { ways: CLASSES.len(), shots: Shots::exactly(DRAWINGS), queries: 0, seed };
        let noise = Noise { kind: NoiseKind::Symmetric, level: WRONG };
        let drawn =
            Sampler::new(characters, None, spec, vec![noise])?.draw(0, &mut IndexSampler::default())?;
        // The name of the class with this number in the episode.
        let class_in_episode = |number: u32| {
            let class = drawn.episode.classes[number as usize].class;
            characters.classes()[class as usize].clone()
        };
        let sorted = drawn.supports[0].iter().map(|item| {
            // `embed` names items CHARACTER/DRAWING, two indices.
            let name = characters.item(item.row as usize).unwrap_or_default();
            let (character, number) = name.split_once('/').unwrap_or_default();
            let (character, number) = (character.parse()?, number.parse::<usize>()?);
            let drawing = drawing(character, number)?;
            let truth = class_name(character);
            Ok(SortedDrawing {
                folder: class_in_episode(item.given),
                // Drawings are counted from 1 in file names.
                file: format!("{truth}-{:02}.png", number + 1),
                truth,
                png: drawing.to_png(),
                thumbnail: drawing.to_png_data_uri(),
            })
        });
        Ok(DemoFolder { drawings: sorted.collect::<anyhow::Result<_>>()? })
    }

    /// Writes the drawings as files in class folders.
    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        for drawing in &self.drawings {
            let class = folder.join(&drawing.folder);
            std::fs::create_dir_all(&class).with_context(|| format!("cannot create {}", class.display()))?;
            trueshot::atomic::write_atomically(&class.join(&drawing.file), |file| {
                file.write_all(&drawing.png)
            })?;
        }
        Ok(())
    }

    /// Audits the drawings as `trueshot audit` does with a folder.
    pub(super) fn audit(self, backbone: Backbone) -> anyhow::Result<AuditedFolder> {
        let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
        let images: Vec<ImageInput<'_>> =
            self.drawings.iter().map(|drawing| ImageInput::Bytes(&drawing.png)).collect();
        let embedded = embedder.embed_images(&images, &())?;
        let results = self.drawings.iter().zip(embedded.rows).zip(embedded.measures);
        let results =
            results.map(|((drawing, row), measures)| (drawing.item(), drawing.folder.clone(), row, measures));
        let rows = LabelledRows::from_results(results, embedder.backbone())?;
        let audit = rows.audit().run()?;
        Ok(AuditedFolder { drawings: self.drawings, rows, audit })
    }
}

impl AuditedFolder {
    /// The HTML page of the audit.
    pub(super) fn page(&self) -> anyhow::Result<String> {
        let data = &self.rows.embeddings;
        let thumbnails: Vec<Option<String>> =
            self.drawings.iter().map(|drawing| Some(drawing.thumbnail.clone())).collect();
        let points = audit::map(data, &())?;
        let plan = self.plan();
        let page = AuditPage {
            title: "Audit of drawings in folders",
            audit: &self.audit,
            data,
            plan: &plan,
            thumbnails: &thumbnails,
            points: &points,
            notes: Vec::new(),
        };
        Ok(page.render())
    }

    /// What the audit finds and what a repair does about it, as text. `columns` limits the width of the table.
    pub(super) fn summary(&self, page: &Path, folder: Option<&Path>, columns: Option<usize>) -> String {
        let (items, wrong) = (self.drawings.len(), self.drawings.len() - self.right_before());
        let table = AuditTable::new(&self.audit).width(columns).render();
        let plan = self.plan();
        let classes = CLASSES.len();
        let mut text = format!(
            "1. A FOLDER OF PICTURES, SOME OF THEM IN THE WRONG FOLDER\n\n\
             {items} drawings of {classes} handwritten characters, one folder per character; {wrong} drawings are in a wrong\n\
             folder. The name of a file says what it shows, but the audit looks at the pictures only. It finds:\n\n\
             {table}\n\
             The plan of the repair:\n"
        );
        for change in repair::moves(&plan, []) {
            let _ = writeln!(text, "  {} -> {}", change.from, change.to);
        }
        let _ = writeln!(
            text,
            "{}\n\n\
             {} of {items} drawings were in the right folder, and {} are after the repair.\n\
             Open {} to see the audit with the drawings.",
            plan.summary(),
            items - wrong,
            self.right_after(),
            page.display()
        );
        if let Some(folder) = folder {
            let _ = write!(text, "\n{}", commands(folder));
        }
        text
    }

    /// The plan of the repair, as `trueshot audit --plan` writes it.
    fn plan(&self) -> RepairPlan {
        let listed = self.drawings.iter().map(|drawing| ListedItem {
            item: drawing.item(),
            class: Some(drawing.folder.clone()),
            ..ListedItem::default()
        });
        RepairPlan::new(
            &self.audit,
            &self.rows.embeddings,
            CollectionKind::Folder,
            Path::new("drawings"),
            listed.collect(),
        )
    }

    /// The number of drawings in the right folder before the repair.
    fn right_before(&self) -> usize {
        self.drawings.iter().filter(|drawing| drawing.folder == drawing.truth).count()
    }

    /// The number of drawings in the right folder after the repair. A drawing in quarantine counts as wrong.
    fn right_after(&self) -> usize {
        let repaired = self.drawings.iter().zip(&self.audit.items).filter(|(drawing, item)| {
            let folder = match item.action {
                Action::Relabel => item.suggested.as_ref(),
                Action::Quarantine => None,
                Action::Keep | Action::Review => Some(&item.given),
            };
            folder == Some(&drawing.truth)
        });
        repaired.count()
    }
}

/// Commands that do the same with the folder of drawings. They name the backbone for drawings; photos need no option.
fn commands(folder: &Path) -> String {
    // Without a slash at the end, which would put the cleaned copy inside the folder.
    let folder: PathBuf = folder.components().collect();
    let cleaned = shell_word(&format!("{}-clean", folder.display()));
    let folder = shell_word(&folder.display().to_string());
    format!(
        "The folder {folder} contains these drawings. To do the same yourself:\n\
         \x20 trueshot audit {folder} --backbone omniglot-conv4 --html audit.html --plan plan.jsonl\n\
         \x20 trueshot repair plan.jsonl --into {cleaned}\n\
         \x20 trueshot serve --backbone omniglot-conv4    # and drop the folder {folder} on the page\n\
         Folders of photos need no --backbone.\n"
    )
}
