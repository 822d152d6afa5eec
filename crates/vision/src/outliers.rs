//! Makes a set of outliers out of ImageNet: pictures of classes that no split has.
//!
//! The paper takes 350 classes of 600 pictures at 84 px, half of the classes for meta-training and half for
//! meta-test. Classes are in order of their names and go to the halves in turn. Which pictures of a class are taken
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

use crate::embed::key_of;
use crate::error::{Error, Result};
use crate::picture::{Channels, DecodeLimits, Picture};
use crate::resize::Fit;
use crate::source::picture_files;
use crate::split::{Split, imagenet_outliers};

/// What the set is to be; written beside it.
const PLAN: &str = "outliers.json";
/// Where ImageNet's class folders may be below the folder given.
const BELOW: [&str; 4] = ["", "train", "ILSVRC/Data/CLS-LOC/train", "Data/CLS-LOC/train"];

/// Which classes are candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidates {
    /// The 350 of the paper.
    Usual,
    /// These.
    Named(Vec<String>),
    /// All folders that are in none of the splits.
    Others,
}

/// What to make.
pub struct Request<'a> {
    /// The folder of class folders.
    pub source: &'a Path,
    /// The folder to write.
    pub output: &'a Path,
    /// Which classes are candidates.
    pub candidates: Candidates,
    /// How many of them are taken.
    pub classes: usize,
    /// Pictures of each.
    pub per_class: usize,
    /// Width and height in pixels.
    pub size: usize,
    /// What becomes of a picture that is no square.
    pub fit: Fit,
    /// Another seed, other pictures.
    pub seed: u64,
    /// Splits that no class may be in, each with where it is from.
    pub exclude: &'a [(String, Split)],
}

/// What is to be made, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Another seed, other pictures.
    pub seed: u64,
    /// Pictures of each class.
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
pub struct Report {
    /// Classes in the set.
    pub classes: usize,
    /// Of these, those that were there already.
    pub kept: usize,
    /// Pictures written.
    pub pictures: usize,
    /// Pictures that could not be read.
    pub unreadable: usize,
    /// Classes with fewer pictures than asked for, and how many they have.
    pub short: Vec<(String, usize)>,
}

/// Chooses the classes. Nothing is written.
pub fn plan(request: &Request<'_>) -> Result<Plan> {
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
    let Request { seed, per_class, size, .. } = *request;
    Ok(Plan { seed, per_class, size, train: half(0), test: half(1) })
}

fn candidates(request: &Request<'_>, folders: &BTreeSet<String>) -> Result<Vec<String>> {
    let named = match &request.candidates {
        Candidates::Usual => imagenet_outliers().map(str::to_owned).collect(),
        Candidates::Named(names) => names.clone(),
        Candidates::Others => {
            let is_free = |class: &&String| request.exclude.iter().all(|(_, split)| !split.holds(class));
            folders.iter().filter(is_free).cloned().collect()
        }
    };
    // In order of their names, and none twice.
    Ok(BTreeSet::from_iter(named).into_iter().collect())
}

fn refuse_overlap(request: &Request<'_>, classes: &[String]) -> Result<()> {
    for (origin, split) in request.exclude {
        let mut shared = classes.iter().filter(|class| split.holds(class));
        if let Some(first) = shared.next() {
            let (class, count) = (first.clone(), 1 + shared.count());
            let split = split.name.clone();
            return Err(Error::OutlierOverlap { class, count, split, origin: origin.clone() });
        }
    }
    Ok(())
}

/// The folder that has the class folders.
fn root(request: &Request<'_>) -> PathBuf {
    let folders = BELOW.map(|below| request.source.join(below));
    folders.into_iter().rev().find(|folder| folder.is_dir()).unwrap_or_else(|| request.source.into())
}

fn class_folders(request: &Request<'_>) -> Result<BTreeSet<String>> {
    let root = root(request);
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
pub fn make(request: &Request<'_>, plan: &Plan, progress: &dyn Progress) -> Result<Report> {
    begin(request.output, plan)?;
    let halves = [("train", &plan.train), ("test", &plan.test)];
    let classes: Vec<(PathBuf, &String)> = halves
        .iter()
        .flat_map(|(half, classes)| classes.iter().map(move |class| (request.output.join(half), class)))
        .collect();
    let (done, root) = (AtomicU64::new(0), root(request));
    let made: Vec<Class> = classes
        .par_iter()
        .map(|(half, class)| {
            let made = make_class(request, &root.join(class), half, class)?;
            progress.check(done.fetch_add(1, Ordering::Relaxed) + 1, classes.len() as u64)?;
            Ok(made)
        })
        .collect::<Result<_>>()?;
    let mut report = Report { classes: classes.len(), ..Report::default() };
    for ((_, class), made) in classes.into_iter().zip(made) {
        report.kept += usize::from(made.was_there);
        report.pictures += if made.was_there { 0 } else { made.pictures };
        report.unreadable += made.unreadable;
        if made.pictures < request.per_class {
            report.short.push((class.clone(), made.pictures));
        }
    }
    Ok(report)
}

/// Writes the plan down, or compares with the one that is there.
fn begin(output: &Path, plan: &Plan) -> Result<()> {
    let path = output.join(PLAN);
    let refused = |problem: &str| Error::BadOutput { path: output.into(), problem: problem.into() };
    if let Ok(text) = std::fs::read_to_string(&path) {
        let before: Option<Plan> = serde_json::from_str(&text).ok();
        return match before.as_ref() == Some(plan) {
            true => Ok(()),
            false => Err(refused("it was begun with other classes, numbers or another seed")),
        };
    }
    let failed = |source| trueshot::Error::Write { path: output.into(), source };
    std::fs::create_dir_all(output).map_err(failed)?;
    if std::fs::read_dir(output).map_err(failed)?.next().is_some() {
        return Err(refused("it is not empty and holds no set of outliers"));
    }
    let text = serde_json::to_string_pretty(plan).expect("names and numbers");
    write_atomically(&path, |file| writeln!(file, "{text}"))?;
    Ok(())
}

struct Class {
    pictures: usize,
    unreadable: usize,
    was_there: bool,
}

fn make_class(request: &Request<'_>, source: &Path, half: &Path, class: &str) -> Result<Class> {
    let (finished, part) = (half.join(class), half.join(format!(".{class}.part")));
    if finished.is_dir() {
        let pictures = picture_files(&finished)?.0.len();
        return Ok(Class { pictures, unreadable: 0, was_there: true });
    }
    let failed = |source| trueshot::Error::Write { path: finished.clone(), source };
    if part.exists() {
        std::fs::remove_dir_all(&part).map_err(failed)?;
    }
    std::fs::create_dir_all(&part).map_err(failed)?;
    let (files, refused) = picture_files(source)?;
    let mut rng = Rng::for_item(request.seed, Purpose::Items, key_of(class), 1);
    let order = IndexSampler::default().draw(&mut rng, files.len(), files.len());
    let (mut pictures, mut unreadable) = (0, refused);
    for file in order.into_iter().map(|place| &files[place as usize]) {
        if pictures == request.per_class {
            break;
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match read(file, request) {
            Some(picture) => write(&part.join(format!("{name}.png")), picture, request)?,
            None => {
                unreadable += 1;
                continue;
            }
        }
        pictures += 1;
    }
    std::fs::rename(&part, &finished).map_err(failed)?;
    Ok(Class { pictures, unreadable, was_there: false })
}

/// The picture at the size that was asked for.
fn read(file: &Path, request: &Request<'_>) -> Option<Picture> {
    let bytes = crate::source::file_bytes(file).ok()?;
    let fitted = |picture: Picture| picture.fitted(request.size, request.fit);
    Picture::decode_then(&bytes, Channels::Colour, &DecodeLimits::default(), fitted).ok()
}

fn write(path: &Path, picture: Picture, request: &Request<'_>) -> Result<()> {
    let size = request.size as u32;
    let image =
        image::RgbImage::from_raw(size, size, picture.pixels).expect("a fitted picture has that size");
    image.save_with_format(path, image::ImageFormat::Png).map_err(|error| {
        let source = std::io::Error::other(error.to_string());
        trueshot::Error::Write { path: path.into(), source }.into()
    })
}
