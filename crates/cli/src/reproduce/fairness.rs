//! Warnings on comparisons that are not fair: shortened training, fewer episodes than in the paper, rows that had more
//! training data, and classes or images in both training and test.

use trueshot::Embeddings;
use trueshot::episode::EpisodeData;
use trueshot::training::heads::overlaps;

use super::jobs::Jobs;
use super::planner::{DatasetSource, FeatureJobs, PlannedTable, ReproduceSettings};
use super::result_cache::ResultCache;
use crate::messages::hinted;

/// The number of evaluation episodes in the paper.
const PAPER_EPISODES: u64 = 10_000;

/// Warnings about the settings, which apply to all tables.
pub fn general_warnings(settings: &ReproduceSettings) -> Vec<String> {
    let mut warnings = Vec::new();
    if settings.scale != 1.0 {
        let change = match settings.scale < 1.0 {
            true => format!("was shortened to {} of its length", settings.scale),
            false => format!("took {} times as long as in full", settings.scale),
        };
        warnings.push(format!("Training {change}: trained rows are not comparable with full training."));
    }
    if settings.episodes < PAPER_EPISODES {
        // The width of a confidence interval falls with the square root of the number of episodes.
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
    if let Some(outliers) = &settings.outliers {
        warnings.push(format!(
            "Outliers are images of {}. If they differ from the images of a data set in more than their content, for instance \
             in sharpness, a trained model finds them by that, and outlier noise is an easier problem than with outliers of \
             the same source.",
            outliers.file_name().unwrap_or_default().display()
        ));
    }
    warnings
}

/// Warnings about one table: classes and images in both training and test, rows with more training data, and rows that
/// were evaluated on fewer episodes.
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
    let is_measured = |index: &usize| !planned.missing.contains_key(index);
    let has_image_model = planned.rows().any(|(index, row)| row.image_model.is_some() && is_measured(&index));
    let &ReproduceSettings { episodes, image_model_episodes, .. } = settings;
    if has_image_model && episodes > image_model_episodes {
        warnings.push(format!(
            "MAML: only the first {image_model_episodes} of these episodes, because it adapts to the images of each episode, \
             which takes long without a GPU."
        ));
    }
    let Some(FeatureJobs { train, val, test, .. }) = &planned.features else { return Ok(warnings) };
    let open = |&job: &usize| Embeddings::open(cache.path(&jobs.all()[job]));
    for (name, job) in [("training", train), ("validation", val)] {
        // These features are not computed if no row is trained, or all evaluations are in the cache.
        let (Ok(features), Ok(test)) = (open(job), open(test)) else { continue };
        let data = |embeddings| EpisodeData { embeddings, outliers: None };
        let overlaps = overlaps(&[data(&features)], &[data(&test)]);
        warnings.extend(overlaps.iter().map(|overlap| format!("Test against {name}: {overlap}.")));
    }
    Ok(warnings)
}

/// Refuses splits and outliers that have a class in common.
pub fn check_class_overlap(source: &DatasetSource<'_>) -> anyhow::Result<()> {
    let Ok(splits) = &source.splits else { return Ok(()) };
    let mut class_lists = vec![
        ("train", splits.train.classes()),
        ("val", splits.val.classes()),
        ("test", splits.test.classes()),
    ];
    if let Some(outliers) = source.separate_outliers() {
        class_lists.push(("outliers/train", outliers.train.classes()));
        class_lists.push(("outliers/test", outliers.test.classes()));
        class_lists.extend(outliers.val.iter().map(|val| ("outliers/val", val.classes())));
    }
    for (index, (first, classes)) in class_lists.iter().enumerate() {
        for (second, others) in &class_lists[index + 1..] {
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
