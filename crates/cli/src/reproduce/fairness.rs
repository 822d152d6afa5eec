//! Warnings on comparisons that are not fair: shortened training, fewer episodes than in the paper, rows that had more
//! training data, and classes or images in both training and test.

use trueshot::Embeddings;
use trueshot::episode::EpisodeData;
use trueshot::training::heads::overlaps;

use super::jobs::Jobs;
use super::planner::{DatasetSource, FeatureJobs, IMAGE_MODEL_EPISODES, PlannedTable, ReproduceSettings};
use super::result_cache::ResultCache;
use crate::messages::hinted;

/// Episodes of the paper.
const PAPER_EPISODES: u64 = 10_000;

/// What holds for everything.
pub fn general_warnings(settings: &ReproduceSettings) -> Vec<String> {
    let mut warnings = Vec::new();
    if settings.scale != 1.0 {
        warnings.push(format!(
            "Training was shortened to {} of its length: trained rows are not comparable with full training.",
            settings.scale
        ));
    }
    if settings.episodes < PAPER_EPISODES {
        warnings.push(format!(
            "{} episodes per setting; the paper used {PAPER_EPISODES}. Intervals are {:.1} times as wide.",
            settings.episodes,
            (PAPER_EPISODES as f64 / settings.episodes as f64).sqrt()
        ));
    }
    for (dataset, (path, _)) in &settings.backbones {
        warnings.push(format!(
            "The backbone of {dataset} was given ({}): whether it was trained on test classes cannot be checked.",
            path.file_name().unwrap_or_default().display()
        ));
    }
    warnings
}

/// What holds for one table: classes and images that are on both sides, and rows that had more to learn from.
pub fn table_warnings(
    planned: &PlannedTable<'_>,
    settings: &ReproduceSettings,
    jobs: &Jobs,
    cache: &ResultCache,
) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    let rows = || planned.rows().map(|(_, row)| row);
    if rows().any(|row| row.method.as_deref() == Some("relabel")) {
        warnings.push(
            "The built-in Relabel head was trained on the training classes of miniImageNet, CIFAR-FS, CUB and Omniglot, mostly \
             with other backbones: it had more training data than the other rows."
                .into(),
        );
    }
    let shown = |number: &usize| !planned.missing.contains_key(number);
    let on_pictures = planned.rows().any(|(number, row)| row.pictures.is_some() && shown(&number));
    if on_pictures && settings.episodes > IMAGE_MODEL_EPISODES {
        warnings.push(format!(
            "MAML: only the first {IMAGE_MODEL_EPISODES} of these episodes, because it adapts to the images of each episode."
        ));
    }
    let Some(FeatureJobs { train, val, test, .. }) = &planned.features else { return Ok(warnings) };
    let open = |&job: &usize| Embeddings::open(cache.path(&jobs.all()[job]));
    for (name, seen) in [("training", train), ("validation", val)] {
        // Rows without training leave those features alone.
        let Ok(seen) = open(seen) else { continue };
        let bank = |embeddings| EpisodeData { embeddings, outliers: None };
        let overlaps = overlaps(&[bank(&seen)], &[bank(&open(test)?)]);
        warnings.extend(overlaps.iter().map(|overlap| format!("Test against {name}: {overlap}.")));
    }
    Ok(warnings)
}

/// Refuses splits that share classes, and outliers that are of a split.
pub fn check_class_overlap(source: &DatasetSource<'_>) -> anyhow::Result<()> {
    let Ok(found) = &source.found else { return Ok(()) };
    let mut parts =
        vec![("train", found.train.classes()), ("val", found.val.classes()), ("test", found.test.classes())];
    if let Ok(outliers) = &source.outliers {
        parts.push(("outliers/train", outliers.train.classes()));
        parts.push(("outliers/test", outliers.test.classes()));
    }
    for (place, (first, classes)) in parts.iter().enumerate() {
        for (second, others) in &parts[place + 1..] {
            if let Some(shared) = classes.iter().find(|class| others.contains(class)) {
                let title = &source.dataset.title;
                return Err(hinted(
                    format!("{title}: class '{shared}' is both in {first} and in {second}"),
                    "training and test classes must differ; remove the class from one of them",
                ));
            }
        }
    }
    Ok(())
}
