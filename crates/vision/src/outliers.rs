//! Builds a set of outliers from ImageNet: images of classes that are in no split.
//!
//! The paper takes 350 classes of 600 images at 84 px, half of the classes for meta-training and half for
//! meta-test. Classes are in order of their names and go to the halves in turn. Which images of a class are taken
//! follows from the seed and the class alone; one that cannot be read makes room for the next.
//!
//! A class is written to a hidden folder that is renamed when it is complete, and `outliers.json` says what the set
//! is to be. So whatever ends the work, the same command goes on with the classes that are missing.

use std::collections::BTreeSet;
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
use crate::source::class_images;
use crate::split::{Split, imagenet_outliers};

/// What the set is to be; written beside it.
const PLAN_FILE: &str = "outliers.json";
/// Where ImageNet's class folders may be below the folder given.
const IMAGENET_FOLDERS: [&str; 4] = ["", "train", "ILSVRC/Data/CLS-LOC/train", "Data/CLS-LOC/train"];

/// Which classes are candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidates {
    /// The 350 of the paper.
    Paper,
    /// These.
    Named(Vec<String>),
    /// All folders that are in none of the splits.
    Others,
}

/// What to make.
pub struct OutlierRequest<'a> {
    /// The folder of class folders.
    pub source: &'a Path,
    /// The folder to write.
    pub output: &'a Path,
    /// Which classes are candidates.
    pub candidates: Candidates,
    /// How many of them are taken.
    pub classes: usize,
    /// Images of each.
    pub per_class: usize,
    /// Width and height in pixels.
    pub size: usize,
    /// What becomes of an image that is no square.
    pub fit: Fit,
    /// Another seed, other images.
    pub seed: u64,
    /// Splits that no class may be in, each with where it is from.
    pub exclude: &'a [(String, Split)],
}

/// What is to be made, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutlierPlan {
    /// Another seed, other images.
    pub seed: u64,
    /// Images of each class.
    pub per_class: usize,
    /// Width and height.
    pub size: usize,
    /// Classes for meta-training.
    pub train: Vec<String>,
    /// Classes for meta-test.
    pub test: Vec<String>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutlierReport {
    /// Classes in the set.
    pub classes: usize,
    /// Of these, those that were there already.
    pub kept: usize,
    /// Images written.
    pub images: usize,
    /// Images that could not be read.
    pub unreadable: usize,
    /// Classes with fewer images than asked for, and how many they have.
    pub short: Vec<(String, usize)>,
}

/// Chooses the classes. Nothing is written.
pub fn plan(request: &OutlierRequest<'_>) -> Result<OutlierPlan> {
    let folders = class_folders(request)?;
    let mut chosen = candidates(request, &folders)?;
    refuse_overlap(request, &chosen)?;
    let asked = chosen.len();
    chosen.retain(|class| folders.contains(class));
    if chosen.len() < request.classes.max(2) {
        let (have, need) = (chosen.len(), request.classes.max(2));
        return Err(Error::TooFewClasses { path: request.source.into(), have, need, asked });
    }
    let mut rng = Rng::new(request.seed, Purpose::Items, 0);
    let drawn = IndexSampler::default().draw(&mut rng, chosen.len(), request.classes);
    let drawn: BTreeSet<&String> = drawn.into_iter().map(|place| &chosen[place as usize]).collect();
    let half = |odd: usize| drawn.iter().skip(odd).step_by(2).map(|class| class.to_string()).collect();
    let OutlierRequest { seed, per_class, size, .. } = *request;
    Ok(OutlierPlan { seed, per_class, size, train: half(0), test: half(1) })
}

fn candidates(request: &OutlierRequest<'_>, folders: &BTreeSet<String>) -> Result<Vec<String>> {
    let named = match &request.candidates {
        Candidates::Paper => imagenet_outliers().map(str::to_owned).collect(),
        Candidates::Named(names) => names.clone(),
        Candidates::Others => {
            let is_free = |class: &&String| request.exclude.iter().all(|(_, split)| !split.contains(class));
            folders.iter().filter(is_free).cloned().collect()
        }
    };
    // In order of their names, and none twice.
    Ok(BTreeSet::from_iter(named).into_iter().collect())
}

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

/// The folder that has the class folders.
fn imagenet_root(request: &OutlierRequest<'_>) -> PathBuf {
    let folders = IMAGENET_FOLDERS.map(|below| request.source.join(below));
    folders.into_iter().rev().find(|folder| folder.is_dir()).unwrap_or_else(|| request.source.into())
}

fn class_folders(request: &OutlierRequest<'_>) -> Result<BTreeSet<String>> {
    let root = imagenet_root(request);
    let failed = |source| trueshot::Error::Read { path: root.clone(), source };
    let mut folders = BTreeSet::new();
    for found in std::fs::read_dir(&root).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name().to_string_lossy().into_owned();
        if found.path().is_dir() && !name.starts_with('.') {
            folders.insert(name);
        }
    }
    Ok(folders)
}

/// Makes what is planned and not there yet. The progress counts the classes.
pub fn write_outliers(
    request: &OutlierRequest<'_>,
    plan: &OutlierPlan,
    progress: &dyn Progress,
) -> Result<OutlierReport> {
    write_or_compare_plan(request.output, plan)?;
    let halves = [("train", &plan.train), ("test", &plan.test)];
    let classes: Vec<(PathBuf, &String)> = halves
        .iter()
        .flat_map(|(half, classes)| classes.iter().map(move |class| (request.output.join(half), class)))
        .collect();
    let (done, root) = (AtomicU64::new(0), imagenet_root(request));
    let made: Vec<WrittenClass> = classes
        .par_iter()
        .map(|(half, class)| {
            let made = write_class(request, &root.join(class), half, class)?;
            progress.check(done.fetch_add(1, Ordering::Relaxed) + 1, classes.len() as u64)?;
            Ok(made)
        })
        .collect::<Result<_>>()?;
    let mut report = OutlierReport { classes: classes.len(), ..OutlierReport::default() };
    for ((_, class), made) in classes.into_iter().zip(made) {
        report.kept += usize::from(made.existed);
        report.images += if made.existed { 0 } else { made.images };
        report.unreadable += made.unreadable;
        if made.images < request.per_class {
            report.short.push((class.clone(), made.images));
        }
    }
    Ok(report)
}

/// Writes the plan down, or compares with the one that is there.
fn write_or_compare_plan(output: &Path, plan: &OutlierPlan) -> Result<()> {
    let path = output.join(PLAN_FILE);
    let refused = |problem: &str| Error::BadOutput { path: output.into(), problem: problem.into() };
    if let Ok(text) = std::fs::read_to_string(&path) {
        let before: Option<OutlierPlan> = serde_json::from_str(&text).ok();
        return match before.as_ref() == Some(plan) {
            true => Ok(()),
            false => Err(refused("it was started with other classes, numbers or another seed")),
        };
    }
    let failed = |source| trueshot::Error::Write { path: output.into(), source };
    std::fs::create_dir_all(output).map_err(failed)?;
    if std::fs::read_dir(output).map_err(failed)?.next().is_some() {
        return Err(refused("it is not empty and contains no set of outliers"));
    }
    let text = serde_json::to_string_pretty(plan).expect("names and numbers");
    write_atomically(&path, |file| writeln!(file, "{text}"))?;
    Ok(())
}

struct WrittenClass {
    images: usize,
    unreadable: usize,
    existed: bool,
}

fn write_class(
    request: &OutlierRequest<'_>,
    source: &Path,
    half: &Path,
    class: &str,
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
    let (files, refused) = class_images(source)?;
    let mut rng = Rng::for_item(request.seed, Purpose::Items, item_seed(class), 1);
    let order = IndexSampler::default().draw(&mut rng, files.len(), files.len());
    let (mut images, mut unreadable) = (0, refused);
    for file in order.into_iter().map(|place| &files[place as usize]) {
        if images == request.per_class {
            break;
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match read_image(file, request) {
            Some(image) => write_png(&part.join(format!("{name}.png")), image, request)?,
            None => {
                unreadable += 1;
                continue;
            }
        }
        images += 1;
    }
    std::fs::rename(&part, &finished).map_err(failed)?;
    Ok(WrittenClass { images, unreadable, existed: false })
}

/// The image at the size that was asked for.
fn read_image(file: &Path, request: &OutlierRequest<'_>) -> Option<DecodedImage> {
    let bytes = crate::source::file_bytes(file).ok()?;
    let fitted = |image: DecodedImage| image.fitted(request.size, request.fit);
    DecodedImage::decode_then(&bytes, Channels::Colour, &DecodeLimits::default(), fitted).ok()
}

fn write_png(path: &Path, image: DecodedImage, request: &OutlierRequest<'_>) -> Result<()> {
    let size = request.size as u32;
    let image = image::RgbImage::from_raw(size, size, image.pixels).expect("a fitted picture has that size");
    image.save_with_format(path, image::ImageFormat::Png).map_err(|error| {
        let source = std::io::Error::other(error.to_string());
        trueshot::Error::Write { path: path.into(), source }.into()
    })
}
