//! Writes folders of outliers: images of the validation classes of a data set ([`write_validation_classes`]), or of
//! ImageNet classes that are in no split, as in the paper ([`plan`], then [`write_outliers`]). *Outliers* are images of
//! classes that no episode has; outlier noise puts them into support sets under the label of a class.
//!
//! The paper takes 350 classes of 600 images at 84 px, half of the classes for meta-training and half for meta-test.
//! Classes are sorted by name and assigned to the halves alternately. The images of a class are chosen by the seed and
//! the name of the class; an image that cannot be read is replaced by the next one, if the class has more.
//!
//! A class is written to a hidden folder that is renamed when it is complete, and `outliers.json` describes the whole
//! set. After an interruption, the same command writes the classes that are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use trueshot::progress::Progress;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use trueshot::atomic::write_atomically;
use trueshot::rng::{IndexSampler, Purpose, Rng};

use crate::decoded_image::{Channels, DecodeLimits, DecodedImage};
use crate::embed::item_seed;
use crate::error::{Error, Result};
use crate::resize::Fit;
use crate::source::{Collection, class_images};
use crate::split::{Split, imagenet_outliers};

/// The file in the output folder that describes the set.
const PLAN_FILE: &str = "outliers.json";
/// Subfolders in which ImageNet's class folders may be; the last one that exists is used.
const IMAGENET_FOLDERS: [&str; 4] = ["", "train", "ILSVRC/Data/CLS-LOC/train", "Data/CLS-LOC/train"];

/// The classes to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidates {
    /// The 350 classes of the paper.
    Paper,
    /// The classes with these names.
    Named(Vec<String>),
    /// All folders whose classes are in none of the excluded splits.
    NotExcluded,
}

/// The options of a set of outliers from ImageNet.
pub struct OutlierRequest<'a> {
    /// The folder of class folders.
    pub source: &'a Path,
    /// The folder to write.
    pub output: &'a Path,
    /// The classes to choose from.
    pub candidates: Candidates,
    /// The number of classes.
    pub classes: usize,
    /// Images per class.
    pub per_class: usize,
    /// Width and height in pixels.
    pub size: usize,
    /// How to handle an image that is not square.
    pub fit: Fit,
    /// The random seed that selects classes and images.
    pub seed: u64,
    /// Splits whose classes must not be outliers, each with the file or name it came from, for messages.
    pub exclude: &'a [(String, Split)],
}

/// The contents of a set of outliers, as `outliers.json` describes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutlierPlan {
    /// The random seed that selects classes and images.
    pub seed: u64,
    /// Images per class; `None`: all.
    pub per_class: Option<usize>,
    /// Width and height in pixels; `None`: those of each image.
    pub size: Option<usize>,
    /// How an image that is not square is handled; `None` in plans of earlier versions, and if images keep their size.
    #[serde(default)]
    pub fit: Option<Fit>,
    /// Classes for meta-training.
    pub train: Vec<String>,
    /// Classes for meta-test.
    pub test: Vec<String>,
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutlierReport {
    /// Classes in the set.
    pub classes: usize,
    /// Classes of the set for meta-training.
    pub train_classes: usize,
    /// Classes that existed already.
    pub kept: usize,
    /// Images written.
    pub images: usize,
    /// Images that could not be read.
    pub unreadable: usize,
    /// Classes with fewer images than requested, and their numbers of images.
    pub short: Vec<(String, usize)>,
}

/// Chooses the classes of a set from ImageNet. Writes nothing.
pub fn plan(request: &OutlierRequest<'_>) -> Result<OutlierPlan> {
    let folders = class_folders(request)?;
    let mut chosen = candidates(request, &folders);
    refuse_overlap(request, &chosen)?;
    // The number of candidates before those without a folder are removed, for the error.
    let asked = chosen.len();
    chosen.retain(|class| folders.contains(class));
    // At least one class for each half.
    if chosen.len() < request.classes.max(2) {
        let (have, need) = (chosen.len(), request.classes.max(2));
        return Err(Error::TooFewClasses { path: request.source.into(), have, need, asked });
    }
    let mut rng = Rng::new(request.seed, Purpose::Items, 0);
    let drawn = IndexSampler::default().draw(&mut rng, chosen.len(), request.classes);
    // Sorted by name; of every two classes the first is for meta-training, the second for meta-test.
    let drawn: BTreeSet<&String> = drawn.into_iter().map(|index| &chosen[index as usize]).collect();
    let every_second =
        |first: usize| drawn.iter().skip(first).step_by(2).map(|class| class.to_string()).collect();
    let OutlierRequest { seed, per_class, size, fit, .. } = *request;
    let (per_class, size, fit) = (Some(per_class), Some(size), Some(fit));
    Ok(OutlierPlan { seed, per_class, size, fit, train: every_second(0), test: every_second(1) })
}

/// The names of the classes to choose from; `folders` are those of all class folders.
fn candidates(request: &OutlierRequest<'_>, folders: &BTreeSet<String>) -> Vec<String> {
    let named = match &request.candidates {
        Candidates::Paper => imagenet_outliers().map(str::to_owned).collect(),
        Candidates::Named(names) => names.clone(),
        Candidates::NotExcluded => {
            let is_free = |class: &&String| request.exclude.iter().all(|(_, split)| !split.contains(class));
            folders.iter().filter(is_free).cloned().collect()
        }
    };
    // Sorted by name, without duplicates.
    BTreeSet::from_iter(named).into_iter().collect()
}

/// Returns an error if a candidate is in one of the excluded splits.
fn refuse_overlap(request: &OutlierRequest<'_>, classes: &[String]) -> Result<()> {
    for (origin, split) in request.exclude {
        let mut shared = classes.iter().filter(|class| split.contains(class));
        if let Some(first) = shared.next() {
            let (class, count) = (first.clone(), 1 + shared.count());
            let split = split.name.clone();
            return Err(Error::OutlierOverlap { class, count, split, origin: origin.clone() });
        }
    }
    Ok(())
}

/// The folder that contains the class folders.
fn imagenet_root(request: &OutlierRequest<'_>) -> PathBuf {
    let folders = IMAGENET_FOLDERS.map(|subfolder| request.source.join(subfolder));
    folders.into_iter().rev().find(|folder| folder.is_dir()).unwrap_or_else(|| request.source.into())
}

/// The names of all class folders.
fn class_folders(request: &OutlierRequest<'_>) -> Result<BTreeSet<String>> {
    let root = imagenet_root(request);
    let failed = |source| trueshot::Error::Read { path: root.clone(), source };
    let mut folders = BTreeSet::new();
    for entry in std::fs::read_dir(&root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('.') {
            folders.insert(name);
        }
    }
    Ok(folders)
}

/// Writes the classes of a set from ImageNet that do not exist yet. The progress counts classes.
pub fn write_outliers(
    request: &OutlierRequest<'_>,
    plan: &OutlierPlan,
    progress: &dyn Progress,
) -> Result<OutlierReport> {
    let root = imagenet_root(request);
    let fitted = |image: DecodedImage| image.fitted(request.size, request.fit);
    write_set(request.output, plan, progress, |class| {
        let (files, refused) = class_images(&root.join(class))?;
        // Images keep their names without extension, or get a number in front if two would have the same.
        let stem = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let are_unique = files.iter().map(stem).collect::<BTreeSet<_>>().len() == files.len();
        let images = files.into_iter().enumerate().map(|(number, file)| {
            let name = if are_unique { stem(&file) } else { format!("{number:05}-{}", stem(&file)) };
            let read = move || {
                let bytes = crate::source::file_bytes(&file).ok()?;
                DecodedImage::decode_then(&bytes, Channels::Colour, &DecodeLimits::default(), fitted).ok()
            };
            ClassImage { name, read: Box::new(read) }
        });
        Ok((images.collect(), refused))
    })
}

/// Writes the images of a collection, the validation classes of a data set, to `test/` in a folder, at their own size.
/// The progress counts classes. If `per_class` is given, the seed selects the images of each class.
///
/// The images are written as PNG: their pixels are those that are read from the data set itself.
pub fn write_validation_classes(
    collection: &Collection,
    output: &Path,
    per_class: Option<usize>,
    seed: u64,
    progress: &dyn Progress,
) -> Result<OutlierReport> {
    let folders: Vec<String> = collection.classes().iter().map(|class| folder_name(class)).collect();
    let mut by_folder = BTreeMap::new();
    for (folder, second) in folders.iter().zip(collection.classes()) {
        if let Some(first) = by_folder.insert(folder.clone(), second.clone()) {
            return Err(Error::SameFolder { first, second: second.clone(), folder: folder.clone() });
        }
    }
    let test = by_folder.into_keys().collect();
    let plan = OutlierPlan { seed, per_class, size: None, fit: None, train: Vec::new(), test };
    write_set(output, &plan, progress, |folder| {
        let class = folders.iter().position(|name| name == folder).expect("the plan has only these folders");
        let entries = collection.entries().iter().filter(|entry| entry.class as usize == class);
        let images = entries.enumerate().map(|(number, entry)| {
            let name = Path::new(&entry.item).file_stem().unwrap_or_default().to_string_lossy();
            let read = move || collection.read_image(entry, Channels::Colour).ok();
            ClassImage { name: format!("{number:05}-{}", folder_name(&name)), read: Box::new(read) }
        });
        Ok((images.collect(), 0))
    })
}

/// A class or image name as a folder or file name: characters that could lead to another folder are replaced.
fn folder_name(name: &str) -> String {
    let is_unsafe = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
    let safe: String = name.chars().map(|c| if is_unsafe(c) { '-' } else { c }).collect();
    if safe.is_empty() || safe.starts_with('.') { format!("_{safe}") } else { safe }
}

/// An image that can be written.
struct ClassImage<'a> {
    /// The name of its file, without extension.
    name: String,
    /// Reads it; `None` if it cannot be read.
    read: Box<dyn Fn() -> Option<DecodedImage> + 'a>,
}

/// Writes the classes of a plan that do not exist yet, in `train/` and `test/` of the folder `output`. `images` lists
/// the images of a class, and counts the files and folders whose names are not UTF-8 or that cannot be read.
fn write_set<'a>(
    output: &Path,
    plan: &OutlierPlan,
    progress: &dyn Progress,
    images: impl Fn(&str) -> Result<(Vec<ClassImage<'a>>, usize)> + Sync,
) -> Result<OutlierReport> {
    write_or_compare_plan(output, plan)?;
    let halves = [("train", &plan.train), ("test", &plan.test)];
    let classes: Vec<(PathBuf, &String)> = halves
        .iter()
        .flat_map(|(half, classes)| classes.iter().map(move |class| (output.join(half), class)))
        .collect();
    let done = AtomicU64::new(0);
    let written: Vec<WrittenClass> = classes
        .par_iter()
        .map(|(half, class)| {
            let written = write_class(plan, half, class, || images(class))?;
            progress.check(done.fetch_add(1, Ordering::Relaxed) + 1, classes.len() as u64)?;
            Ok(written)
        })
        .collect::<Result<_>>()?;
    let mut report =
        OutlierReport { classes: classes.len(), train_classes: plan.train.len(), ..OutlierReport::default() };
    for ((_, class), written) in classes.into_iter().zip(written) {
        report.kept += usize::from(written.existed);
        report.images += if written.existed { 0 } else { written.images };
        report.unreadable += written.unreadable;
        if plan.per_class.is_some_and(|per_class| written.images < per_class) {
            report.short.push((class.clone(), written.images));
        }
    }
    Ok(report)
}

/// Writes `outliers.json`, or compares the plan with an existing one.
fn write_or_compare_plan(output: &Path, plan: &OutlierPlan) -> Result<()> {
    let path = output.join(PLAN_FILE);
    let refused = |problem: &str| Error::BadOutput { path: output.into(), problem: problem.into() };
    if let Ok(text) = std::fs::read_to_string(&path) {
        let existing: Option<OutlierPlan> = serde_json::from_str(&text).ok();
        // Plans of earlier versions do not say how images were fitted; the requested `fit` is assumed.
        let existing = existing.map(|existing| OutlierPlan { fit: existing.fit.or(plan.fit), ..existing });
        if existing.as_ref() != Some(plan) {
            return Err(refused("it was started with other options"));
        }
        return Ok(());
    }
    let failed = |source| trueshot::Error::Write { path: output.into(), source };
    std::fs::create_dir_all(output).map_err(failed)?;
    if std::fs::read_dir(output).map_err(failed)?.next().is_some() {
        return Err(refused("it is not empty and contains no set of outliers"));
    }
    let text = serde_json::to_string_pretty(plan).expect("names and numbers can be written as JSON");
    write_atomically(&path, |file| writeln!(file, "{text}"))?;
    Ok(())
}

/// What was written of one class.
struct WrittenClass {
    /// Images in the folder.
    images: usize,
    /// Images that could not be read.
    unreadable: usize,
    /// Whether the folder existed already.
    existed: bool,
}

/// Writes a class to a folder in `half`, unless it exists. The folder gets its name only when it is complete.
fn write_class<'a>(
    plan: &OutlierPlan,
    half: &Path,
    class: &str,
    images: impl Fn() -> Result<(Vec<ClassImage<'a>>, usize)>,
) -> Result<WrittenClass> {
    let (finished, part) = (half.join(class), half.join(format!(".{class}.part")));
    if finished.is_dir() {
        let images = class_images(&finished)?.0.len();
        return Ok(WrittenClass { images, unreadable: 0, existed: true });
    }
    let failed = |source| trueshot::Error::Write { path: finished.clone(), source };
    if part.exists() {
        std::fs::remove_dir_all(&part).map_err(failed)?;
    }
    std::fs::create_dir_all(&part).map_err(failed)?;
    let (images, refused) = images()?;
    // A random order that depends on the seed and the name of the class only. Images are taken in this order, up to the
    // wanted number of readable ones.
    let mut rng = Rng::for_item(plan.seed, Purpose::Items, item_seed(class), 1);
    let order = IndexSampler::default().draw(&mut rng, images.len(), images.len());
    let (mut written, mut unreadable) = (0, refused);
    for image in order.into_iter().map(|index| &images[index as usize]) {
        if plan.per_class == Some(written) {
            break;
        }
        match (image.read)() {
            Some(pixels) => write_png(&part.join(format!("{}.png", image.name)), pixels)?,
            None => {
                unreadable += 1;
                continue;
            }
        }
        written += 1;
    }
    std::fs::rename(&part, &finished).map_err(failed)?;
    Ok(WrittenClass { images: written, unreadable, existed: false })
}

/// Writes a colour image as a PNG file.
fn write_png(path: &Path, image: DecodedImage) -> Result<()> {
    let (width, height) = (image.width as u32, image.height as u32);
    let image = image::RgbImage::from_raw(width, height, image.pixels).expect("three values per pixel");
    image.save_with_format(path, image::ImageFormat::Png).map_err(|error| {
        let source = std::io::Error::other(error.to_string());
        trueshot::Error::Write { path: path.into(), source }.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceOptions;

    /// Writes equal small images with these paths in a folder.
    fn write_images(folder: &Path, names: &[&str]) {
        for name in names {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            image::RgbImage::from_pixel(2, 2, image::Rgb([7, 8, 9])).save(path).unwrap();
        }
    }

    /// The names of the files in a folder.
    fn names(folder: &Path) -> BTreeSet<String> {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        files.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn images_with_the_same_name_do_not_overwrite_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let (source, output) = (folder.path().join("source"), folder.path().join("output"));
        write_images(&source, &["ant/1.jpg", "ant/1.png", "ant/more/1.png", "owl/1.png", "owl/2.png"]);
        let request = OutlierRequest {
            source: &source,
            output: &output,
            candidates: Candidates::Named(vec!["ant".into(), "owl".into()]),
            classes: 2,
            per_class: 3,
            size: 2,
            fit: Fit::Squash,
            seed: 1,
            exclude: &[],
        };
        let report = write_outliers(&request, &plan(&request).unwrap(), &()).unwrap();
        assert_eq!(report.images, 5);
        assert_eq!(names(&output.join("train/ant")).len(), 3);
        assert_eq!(names(&output.join("test/owl")), BTreeSet::from(["1.png", "2.png"].map(String::from)));
    }

    #[test]
    fn classes_that_lead_to_the_same_folder_are_both_named() {
        let folder = tempfile::tempdir().unwrap();
        let (source, output) = (folder.path().join("source"), folder.path().join("output"));
        write_images(&source, &["a/b/1.png", "a-b/1.png"]);
        let collection = Collection::open(&source, SourceOptions::default()).unwrap();
        let refused = write_validation_classes(&collection, &output, None, 1, &()).unwrap_err();
        let expected =
            "classes 'a-b' and 'a/b' would be written to the same folder, 'a-b': rename one of them";
        assert_eq!((refused.to_string().as_str(), refused.hint()), (expected, None));
    }
}
