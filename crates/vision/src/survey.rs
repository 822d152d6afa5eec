//! Surveys of data sets: numbers of classes and images and the sizes of images, compared with the published numbers.
//! The command `trueshot dataset check` prints them.
//!
//! [`Survey::count`] counts classes and images, and [`Survey::read`] also reads every image, since a file may be
//! truncated. [`PublishedDataset::problems`] describes differences from the published numbers.

use std::collections::BTreeMap;
use trueshot::progress::Progress;

use rayon::prelude::*;

use crate::decoded_image::Channels;
use crate::error::{Result, Skipped};
use crate::source::Collection;
use crate::split::Split;

/// Images that are read between two reports of progress.
const CHUNK: usize = 512;
/// The most names in a message before "and more".
const MAX_LISTED: usize = 3;

/// The contents of one split of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// The number of readable images of each class.
    pub classes: BTreeMap<String, usize>,
    /// The number of images by width and height; empty if the images were not read.
    pub sizes: BTreeMap<(usize, usize), usize>,
    /// Files that were skipped.
    pub skipped: Vec<Skipped>,
}

impl Survey {
    /// Counts the images of a collection without reading any.
    pub fn count(collection: &Collection) -> Self {
        let mut classes: BTreeMap<String, usize> = BTreeMap::new();
        for entry in collection.entries() {
            *classes.entry(collection.class_of(entry).to_owned()).or_default() += 1;
        }
        Survey { classes, sizes: BTreeMap::new(), skipped: collection.skipped().to_vec() }
    }

    /// Reads every image of a collection on all threads. The progress counts the images.
    pub fn read(collection: &Collection, progress: &dyn Progress) -> Result<Self> {
        let mut survey = Self::count(collection);
        for (round, entries) in collection.entries().chunks(CHUNK).enumerate() {
            let size =
                |entry| collection.read_image_then(entry, Channels::Colour, |read| (read.width, read.height));
            let read: Vec<_> = entries.par_iter().map(size).collect();
            for (entry, outcome) in entries.iter().zip(read) {
                match outcome {
                    Ok(size) => *survey.sizes.entry(size).or_default() += 1,
                    Err(reason) => {
                        let class = collection.class_of(entry).to_owned();
                        survey.classes.entry(class.clone()).and_modify(|count| *count -= 1);
                        survey.skipped.push(Skipped { item: entry.item.clone(), class: Some(class), reason });
                    }
                }
            }
            progress.check((round * CHUNK + entries.len()) as u64, collection.entries().len() as u64)?;
        }
        Ok(survey)
    }

    /// The number of readable images.
    pub fn images(&self) -> usize {
        self.classes.values().sum()
    }
}

/// The published numbers of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedDataset {
    /// The name, which is also that of its built-in split file.
    pub name: &'static str,
    /// Numbers of classes for training, validation and test.
    pub classes: [usize; 3],
    /// Images per class, if equal for all classes.
    pub per_class: Option<usize>,
    /// Numbers of images of the three splits, if the classes differ in size.
    pub images: Option<[usize; 3]>,
    /// Width and height, if equal for all images.
    pub size: Option<usize>,
}

/// The names of the three splits, in their usual order.
pub const SPLITS: [&str; 3] = ["train", "val", "test"];

/// The data sets of the paper and the most common others.
pub const PUBLISHED_DATASETS: [PublishedDataset; 5] = [
    PublishedDataset {
        name: "mini",
        classes: [64, 16, 20],
        per_class: Some(600),
        images: None,
        size: Some(84),
    },
    PublishedDataset {
        name: "tiered",
        classes: [351, 97, 160],
        per_class: None,
        images: Some([448_695, 124_261, 206_209]),
        size: Some(84),
    },
    PublishedDataset {
        name: "cifar-fs",
        classes: [64, 16, 20],
        per_class: Some(600),
        images: None,
        size: Some(32),
    },
    PublishedDataset {
        name: "fc100",
        classes: [60, 20, 20],
        per_class: Some(600),
        images: None,
        size: Some(32),
    },
    PublishedDataset { name: "cub", classes: [100, 50, 50], per_class: None, images: None, size: None },
];

impl PublishedDataset {
    /// The data set of a name; `miniimagenet` and `tieredimagenet` are other names of `mini` and `tiered`.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = name.strip_suffix("imagenet").unwrap_or(name);
        PUBLISHED_DATASETS.iter().find(|published| published.name == name)
    }

    /// Differences between a survey and the published numbers of one split, one sentence each. `split_index` is the
    /// index of the split in [`SPLITS`]. `split` has the expected class names; `None` if they are not known.
    pub fn problems(&self, split_index: usize, survey: &Survey, split: Option<&Split>) -> Vec<String> {
        let mut problems = Vec::new();
        let name = SPLITS[split_index];
        let mut add = |problem: String| problems.push(format!("{name}: {problem}"));
        let (have, want) = (survey.classes.len(), self.classes[split_index]);
        if have != want {
            add(format!("{have} classes instead of {want}"));
        }
        let present: Vec<String> = survey.classes.keys().cloned().collect();
        // Class names are compared only if at least one is known; otherwise this copy of the data set uses other names.
        let known = split.filter(|split| present.iter().any(|class| split.contains(class)));
        if let Some(split) = known {
            let missing = split.missing(&present);
            if !missing.is_empty() {
                add(format!("{} missing: {}", class_count(missing.len()), list_names(&missing)));
            }
            let extra: Vec<String> = present.into_iter().filter(|class| !split.contains(class)).collect();
            if !extra.is_empty() {
                add(format!("{} not in this split: {}", class_count(extra.len()), list_names(&extra)));
            }
        }
        if let Some(per_class) = self.per_class {
            let wrong = survey.classes.iter().filter(|(_, count)| **count != per_class);
            let wrong: Vec<String> = wrong.map(|(class, count)| format!("{class} ({count})")).collect();
            if !wrong.is_empty() {
                add(format!(
                    "{} without exactly {per_class} images: {}",
                    class_count(wrong.len()),
                    list_names(&wrong)
                ));
            }
        }
        if let Some(images) = self.images.map(|images| images[split_index]) {
            let have = survey.images();
            if have != images {
                add(format!("{have} images instead of {images}"));
            }
        }
        if let Some(size) = self.size {
            let wrong: usize =
                survey.sizes.iter().filter(|(sides, _)| **sides != (size, size)).map(|(_, n)| n).sum();
            if wrong > 0 {
                add(format!("{wrong} images are not {size} x {size} px"));
            }
        }
        if let Some(first) = survey.skipped.first() {
            add(format!("{} files cannot be used, the first: {first}", survey.skipped.len()));
        }
        problems
    }
}

/// Classes that are in more than one split, as one sentence per pair of splits; `parts` are the splits with their
/// names.
pub fn shared_classes(parts: &[(&str, &Survey)]) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, (first_name, first)) in parts.iter().enumerate() {
        for (second_name, second) in &parts[index + 1..] {
            let shared = first.classes.keys().filter(|class| second.classes.contains_key(*class));
            let shared: Vec<String> = shared.cloned().collect();
            if !shared.is_empty() {
                let count = class_count(shared.len());
                problems
                    .push(format!("{first_name} and {second_name} share {count}: {}", list_names(&shared)));
            }
        }
    }
    problems
}

/// A number of classes in words, such as `3 classes`.
fn class_count(count: usize) -> String {
    if count == 1 { "1 class".into() } else { format!("{count} classes") }
}

/// The first [`MAX_LISTED`] names, and how many more there are.
fn list_names(names: &[String]) -> String {
    let shown = names.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED { format!("{shown} and {} more", names.len() - MAX_LISTED) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A survey of `classes` classes with `images` images each, and one image of 84 x 84 pixels.
    fn survey(classes: usize, images: usize) -> Survey {
        let classes = (0..classes).map(|class| (format!("class {class:02}"), images)).collect();
        Survey { classes, sizes: BTreeMap::from([((84, 84), 1)]), skipped: Vec::new() }
    }

    #[test]
    fn a_data_set_with_the_published_numbers_has_no_problems() {
        let mini = PublishedDataset::find("miniimagenet").unwrap();
        assert!(mini.problems(1, &survey(16, 600), None).is_empty());
    }

    #[test]
    fn differences_are_described_with_names_and_numbers() {
        let mini = PublishedDataset::find("mini").unwrap();
        let mut survey = survey(15, 600);
        survey.classes.insert("class 03".into(), 599);
        survey.sizes.insert((64, 64), 7);
        let split = Split { name: "val".into(), classes: (0..16).map(|n| format!("class {n:02}")).collect() };
        assert_eq!(
            mini.problems(1, &survey, Some(&split)),
            [
                "val: 15 classes instead of 16",
                "val: 1 class missing: class 15",
                "val: 1 class without exactly 600 images: class 03 (599)",
                "val: 7 images are not 84 x 84 px",
            ]
        );
    }

    #[test]
    fn classes_in_two_splits_are_named() {
        let (train, test) = (survey(2, 5), survey(5, 5));
        let problems = shared_classes(&[("train", &train), ("test", &test)]);
        assert_eq!(problems, ["train and test share 2 classes: class 00, class 01"]);
    }

    #[test]
    fn every_published_data_set_has_its_split_file() {
        for published in PUBLISHED_DATASETS {
            for (split, count) in SPLITS.iter().zip(published.classes) {
                let split = Split::open(published.name.as_ref(), split).unwrap();
                assert_eq!(split.classes.len(), count, "{} {}", published.name, split.name);
            }
        }
    }
}
