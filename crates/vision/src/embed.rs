//! Embeds a collection of images into a file ([`embed`]), without holding all images or embeddings in memory. The
//! command `trueshot embed` calls it.
//!
//! Images are decoded, augmented, embedded and encoded in small blocks on all threads, and written in the order of the
//! collection: by class, image and copy. Images that cannot be read are skipped and listed. Augmentation depends on the
//! seed, the name of the image and the number of the copy, so the bytes of the file depend neither on threads nor on
//! the other images.
//!
//! Without augmentation, [`Embedder`] embeds the images, with its cache. Augmented copies are not cached, and are read,
//! augmented and embedded here.

use std::path::Path;
use trueshot::progress::Progress;

use rayon::prelude::*;
use trueshot::embeddings::{Precision, Writer};

use crate::augment::{Augmentation, Augmenter};
use crate::backbone::Backbone;
use crate::decoded_image::DecodedImage;
use crate::embedder::{EmbeddedImage, Embedder, ImageInput, Window};
use crate::error::{Error, Result, Skipped, Unreadable};
use crate::network::EmbeddingSession;
use crate::preprocess::Preprocessing;
use crate::source::{Collection, ImageEntry};

/// The most rows (images or augmented copies) per block, the work unit of one thread: enough for the network to process
/// several images together.
const MAX_BLOCK_ROWS: usize = 16;
/// Blocks per thread that are computed before their rows are written to the file.
const BLOCKS_PER_THREAD: usize = 16;

/// The options of [`embed`].
#[derive(Clone, Copy)]
pub struct EmbedRequest<'a> {
    /// The images.
    pub collection: &'a Collection,
    /// The backbone and its cache.
    pub embedder: &'a Embedder,
    /// Number of augmented copies per image, and their augmentation; `None` embeds each image once, unchanged.
    pub copies: Option<(usize, &'a Augmentation)>,
    /// The number format of the file.
    pub precision: Precision,
    /// The random seed of the augmentation.
    pub seed: u64,
    /// The least number of readable images that every class must have.
    pub min_per_class: usize,
}

/// The result of [`embed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedReport {
    /// Rows of the file.
    pub rows: usize,
    /// Images that were read.
    pub images: usize,
    /// Number of images whose embeddings were in the cache.
    pub from_cache: usize,
    /// Images that were skipped.
    pub skipped: Vec<Skipped>,
}

/// The rows of an image, one per copy, encoded in the number format of the file; or why the image was skipped.
type EncodedRows = std::result::Result<Vec<u8>, Unreadable>;

/// Embeds all images into a file, which is written under its name only when it is complete. The progress counts the
/// images.
pub fn embed(request: &EmbedRequest<'_>, output: &Path, progress: &dyn Progress) -> Result<EmbedReport> {
    request.embedder.with_fallback(|embedder| EmbedRequest { embedder, ..*request }.run(output, progress))
}

impl EmbedRequest<'_> {
    /// Embeds window by window, and writes the rows of each window before the next one.
    fn run(&self, output: &Path, progress: &dyn Progress) -> Result<EmbedReport> {
        let entries = self.collection.entries();
        let mut writer = self.create_writer(output)?;
        let mut report = EmbedReport { rows: 0, images: 0, from_cache: 0, skipped: Vec::new() };
        let mut window = Window { progress, before: 0, total: entries.len() as u64 };
        for entries in entries.chunks(self.window_len()) {
            let rows = match self.copies {
                None => self.rows(entries, window, &mut report)?,
                Some(_) => self.augmented_rows(entries, window)?,
            };
            for (entry, rows) in entries.iter().zip(rows) {
                self.write(&mut writer, entry, rows, &mut report)?;
            }
            window.before += entries.len() as u64;
        }
        self.check_classes(&report)?;
        report.rows = writer.rows();
        writer.finish()?;
        Ok(report)
    }

    /// Rows per image.
    fn copies(&self) -> usize {
        self.copies.map_or(1, |(copies, _)| copies)
    }

    fn backbone(&self) -> &Backbone {
        self.embedder.backbone()
    }

    /// Images per block of augmented images. If the network fails, all images of the block are skipped, so a block has
    /// no more rows than the network processes together.
    fn images_per_block(&self) -> usize {
        self.backbone().batch_size().min(MAX_BLOCK_ROWS).div_ceil(self.copies()).max(1)
    }

    /// Images that are computed before their rows are written.
    fn window_len(&self) -> usize {
        match self.copies {
            None => self.embedder.window_len(),
            Some(_) => self.images_per_block() * BLOCKS_PER_THREAD * rayon::current_num_threads().max(1),
        }
    }

    /// Embeds images that are not augmented, and counts those from the cache in `report`.
    fn rows(
        &self,
        entries: &[ImageEntry],
        window: Window<'_>,
        report: &mut EmbedReport,
    ) -> Result<Vec<EncodedRows>> {
        let images: Vec<ImageInput<'_>> =
            entries.iter().map(|entry| ImageInput::Entry(self.collection, entry)).collect();
        let encode = |image: EmbeddedImage| {
            report.from_cache += usize::from(image.was_cached);
            image.row.and_then(|row| self.encode(&row))
        };
        Ok(self.embedder.embed_window(&images, window)?.into_iter().map(encode).collect())
    }

    /// Embeds the augmented copies of images.
    fn augmented_rows(&self, entries: &[ImageEntry], window: Window<'_>) -> Result<Vec<EncodedRows>> {
        let blocks: Vec<Vec<EncodedRows>> = entries
            .par_chunks(self.images_per_block())
            .map_init(|| AugmentWorker::new(self.backbone()), |worker, block| worker.embed(self, block))
            .collect();
        self.backbone().check_network()?;
        window.progress.check(window.before + entries.len() as u64, window.total)?;
        Ok(blocks.into_iter().flatten().collect())
    }

    /// Creates the file, with notes on what its rows depend on.
    fn create_writer(&self, output: &Path) -> Result<Writer> {
        let mut notes = vec![("backbone", self.backbone().name().to_string())];
        if let Some(device) = self.backbone().device() {
            notes.push(("device", device.to_string()));
        }
        if let Some((copies, augmentation)) = self.copies {
            let augmentation = serde_json::to_string(augmentation).expect("plain numbers");
            notes.extend([("copies", copies.to_string()), ("augmentation", augmentation)]);
            notes.push(("seed", self.seed.to_string()));
        }
        let classes = self.collection.classes();
        Ok(Writer::create(output, self.backbone().dim(), self.precision, classes, &notes)?)
    }

    /// Writes the rows of an image, or lists the image as skipped. Copy `n` of `item`, from 1, is named `item#n`.
    fn write(
        &self,
        writer: &mut Writer,
        entry: &ImageEntry,
        rows: EncodedRows,
        report: &mut EmbedReport,
    ) -> Result<()> {
        let rows = match rows {
            Ok(rows) => rows,
            Err(reason) => {
                let class = Some(self.collection.class_of(entry).to_owned());
                report.skipped.push(Skipped { item: entry.item.clone(), class, reason });
                return Ok(());
            }
        };
        report.images += 1;
        let row_bytes = self.backbone().dim() * self.precision.size();
        for (copy, row) in rows.chunks_exact(row_bytes).enumerate() {
            match self.copies {
                None => writer.push(entry.class, &entry.item, row)?,
                Some(_) => writer.push(entry.class, &format!("{}#{}", entry.item, copy + 1), row)?,
            }
        }
        Ok(())
    }

    /// Returns an error if a class has too few readable images.
    fn check_classes(&self, report: &EmbedReport) -> Result<()> {
        let classes = self.collection.classes();
        // The number of readable images of each class.
        let mut have = vec![0_usize; classes.len()];
        self.collection.entries().iter().for_each(|entry| have[entry.class as usize] += 1);
        for class in
            report.skipped.iter().filter_map(|skipped| classes.binary_search(skipped.class.as_ref()?).ok())
        {
            have[class] -= 1;
        }
        let too_small = (0..classes.len()).find(|&class| have[class] < self.min_per_class);
        match too_small {
            None => Ok(()),
            Some(class) => Err(Error::TooFewImages {
                class: classes[class].clone(),
                have: have[class],
                need: self.min_per_class,
                skipped: report.skipped.clone(),
            }),
        }
    }
}

/// A hash of the name of an image (or a class), from which its random numbers are drawn: they do not depend on the
/// other images.
pub(crate) fn item_seed(item: &str) -> u64 {
    let hash = blake3::hash(item.as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
}

/// The longest side that is kept of an image that will be cropped, in sixteenths of the network's input size: 1.25
/// times that size, so a crop of 80 % of each side has the size of the input.
const MAX_SIDE_SIXTEENTHS: usize = 20;

/// The image at the network's input size. If it will be augmented, it stays a little larger, because it will be
/// cropped; it is then never enlarged, and its sides may differ.
pub(crate) fn resize_for_training(image: DecodedImage, to: &Preprocessing, augmented: bool) -> DecodedImage {
    if !augmented {
        return to.fitted(image);
    }
    let most = to.size * MAX_SIDE_SIXTEENTHS / 16;
    let image = image.cropped_for(to.fit);
    let (width, height) = (image.width.min(most), image.height.min(most));
    image.resized(width, height)
}

/// The working memory of one thread that embeds augmented copies.
struct AugmentWorker {
    augmenter: Augmenter,
    session: Box<dyn EmbeddingSession>,
    /// The copies of a block: `[image, copy, row, column, channel]`, without images that cannot be read.
    inputs: Vec<f32>,
    /// Their embeddings: `[image, copy, dim]`.
    features: Vec<f32>,
}

impl AugmentWorker {
    fn new(backbone: &Backbone) -> Self {
        let (inputs, features) = (Vec::new(), Vec::new());
        let augmenter = Augmenter::default();
        AugmentWorker { augmenter, session: backbone.session(), inputs, features }
    }

    /// Embeds a block of images with one call of the network. If the network fails, all readable images are skipped.
    fn embed(&mut self, request: &EmbedRequest<'_>, entries: &[ImageEntry]) -> Vec<EncodedRows> {
        let backbone = request.backbone();
        self.inputs.clear();
        let read: Vec<std::result::Result<(), Unreadable>> =
            entries.iter().map(|entry| self.read(request, entry)).collect();
        let input_len = backbone.preprocessing().input_len();
        self.features.resize(self.inputs.len() / input_len * backbone.dim(), 0.0);
        let outcome = self.session.embed(&self.inputs, &mut self.features);
        let mut rows = self.features.chunks_exact(request.copies() * backbone.dim());
        let encode = |read: std::result::Result<(), Unreadable>| {
            read.and(outcome.clone())?;
            request.encode(rows.next().expect("rows for every image that was read"))
        };
        read.into_iter().map(encode).collect()
    }

    /// Reads one image and appends the network inputs of all its copies.
    fn read(
        &mut self,
        request: &EmbedRequest<'_>,
        entry: &ImageEntry,
    ) -> std::result::Result<(), Unreadable> {
        let to = request.backbone().preprocessing();
        let Some((copies, augmentation)) = request.copies else { return Ok(()) };
        let image = request
            .collection
            .read_image_then(entry, to.channels, |read| resize_for_training(read, to, true))?;
        let start = self.inputs.len();
        self.inputs.resize(start + copies * to.input_len(), 0.0);
        let inputs = self.inputs[start..].chunks_exact_mut(to.input_len());
        let key = item_seed(&entry.item);
        for (copy, input) in (1..).zip(inputs) {
            let drawn = augmentation.draw(request.seed, key, copy, image.width, image.height);
            self.augmenter.apply(&image, &drawn, to, input);
        }
        Ok(())
    }
}

impl EmbedRequest<'_> {
    /// The rows of an image (`[copy, dim]`) as bytes of the file; an error if the file's number format cannot store a
    /// value.
    fn encode(&self, features: &[f32]) -> EncodedRows {
        let mut bytes = Vec::with_capacity(features.len() * self.precision.size());
        let Err(index) = self.precision.encode(features, &mut bytes) else { return Ok(bytes) };
        let (place, value) = (index % self.backbone().dim(), features[index].to_string());
        Err(if features[index].is_finite() {
            Unreadable::TooLargeToStore { place, value }
        } else {
            Unreadable::NotFinite { place, value }
        })
    }
}
