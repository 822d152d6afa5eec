//! [`Embedder`]: embeds images in memory on all threads, with known embeddings taken from the cache. Start with
//! [`Embedder::embed_images`] or [`Embedder::embed_collection`]; [`embed`](crate::embed::embed) writes to a file
//! instead.
//!
//! Images are files, members of archives, or bytes. An image that cannot be read has an error as its result and does
//! not affect the others. A row (the embedding of one image) depends on its image alone: neither threads nor other
//! images nor the cache change a bit.
//!
//! Images are processed in *windows*, one after the other. Within a window there are two ways, depending on the
//! network:
//!
//! - On the CPU, each thread takes *blocks* of the network's batch size: it reads the images of the block (cache, or
//!   decode, measure and resize) and embeds them itself (`embed_block`).
//! - On a GPU, threads read single images and submit them to one [queue](crate::batch_queue), which embeds them in
//!   batches (`embed_queued`).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use trueshot::audit::ImageMeasures;
use trueshot::progress::Progress;

use bytes::Bytes;
use rayon::prelude::*;
use trueshot::Embeddings;

use crate::backbone::{Backbone, BackboneOptions};
use crate::batch_queue::{BatchQueue, PendingRow};
use crate::cache::{CacheLocation, CachedImage, ContentHash, EmbeddingCache};
use crate::decoded_image::{DecodeLimits, DecodedImage};
use crate::error::{Error, Result, Skipped, Unreadable};
use crate::image_measures::measure;
use crate::labelled::LabelledRows;
use crate::network::EmbeddingSession;
use crate::source::{self, Collection, ImageContents, ImageEntry};

/// Blocks per thread in a window, on the CPU. Progress is reported after every window.
const BLOCKS_PER_THREAD: usize = 16;
/// Images per thread in a window if they go through a queue, where threads report progress themselves: enough that
/// threads rarely wait for the last images of others.
const QUEUED_PER_THREAD: usize = 256;

/// An image to embed.
#[derive(Debug, Clone, Copy)]
pub enum ImageInput<'a> {
    /// A file.
    File(&'a Path),
    /// The bytes of a file.
    Bytes(&'a [u8]),
    /// An image of a collection.
    Entry(&'a Collection, &'a ImageEntry),
}

/// The embedding of an image, or why it could not be embedded.
pub type EmbeddingResult = std::result::Result<Vec<f32>, Unreadable>;

/// The result of [`Embedder::embed_images`], in the order of the given images.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddedImages {
    /// One per image.
    pub rows: Vec<EmbeddingResult>,
    /// The number of rows that were in the cache.
    pub from_cache: usize,
    /// Per image the BLAKE3 hash of its file; `None` for an image that is not a file or cannot be read.
    pub hashes: Vec<Option<ContentHash>>,
    /// Per image its measures; `None` if it cannot be read.
    pub measures: Vec<Option<ImageMeasures>>,
}

/// The result for one image.
pub(crate) struct EmbeddedImage {
    pub row: EmbeddingResult,
    /// Whether the row was in the cache.
    pub was_cached: bool,
    /// The BLAKE3 hash of its file.
    pub hash: Option<ContentHash>,
    /// The measures of the image, if it can be read.
    pub measures: Option<ImageMeasures>,
}

/// The embeddings of a collection.
pub struct EmbeddedCollection {
    /// Rows with classes, items and the name of the backbone.
    pub embeddings: Embeddings,
    /// For every row the index of its image in [`Collection::entries`]; images without an embedding are left out.
    pub entries: Vec<u32>,
    /// Images that could not be read, and those skipped when the collection was listed.
    pub skipped: Vec<Skipped>,
    /// The number of rows that were in the cache.
    pub from_cache: usize,
    /// For every entry of the collection (not only for every row) the BLAKE3 hash of its file as it was embedded;
    /// `None` for an image that is not a file or cannot be read.
    pub hashes: Vec<Option<ContentHash>>,
    /// For every row the measures of its image.
    pub measures: Vec<Option<ImageMeasures>>,
}

/// A backbone with a cache and the memory of its threads: embeds images from files, bytes and collections.
///
/// ```
/// use trueshot_vision::backbone::BackboneOptions;
/// use trueshot_vision::cache::CacheLocation;
/// use trueshot_vision::{Bitmap, Embedder};
///
/// let png = Bitmap::from_fn(28, 28, |x, y| x == y).to_png();
/// let embedder = Embedder::open("omniglot-conv4", &BackboneOptions::default(), &CacheLocation::Disabled)?;
/// let rows = embedder.embed_bytes(&[&png[..], &b"not an image"[..]])?;
/// assert_eq!(rows[0].as_ref().unwrap().len(), embedder.backbone().dim());
/// assert!(rows[1].is_err(), "a file that cannot be read does not spoil the others");
/// # Ok::<(), trueshot_vision::Error>(())
/// ```
pub struct Embedder {
    backbone: Backbone,
    /// Where the cache is, for the embedder that takes over from a GPU.
    location: CacheLocation,
    /// `None`: embeddings are not cached.
    cache: Option<EmbeddingCache>,
    /// Limits on the images that are decoded.
    limits: DecodeLimits,
    /// Working memory that no thread is using.
    idle: Mutex<Vec<EmbedWorker>>,
    /// Called when the GPU fails and the CPU takes over; `None`: no fallback to the CPU.
    on_gpu_failure: Option<FailureNotice>,
    /// The embedder on the CPU that replaces a GPU that has failed.
    fallback: OnceLock<Box<Embedder>>,
}

/// Receives the reason why the GPU has failed.
type FailureNotice = Box<dyn Fn(&str) + Send + Sync>;

/// The session and the working memory of one thread that embeds blocks on the CPU.
struct EmbedWorker {
    session: Box<dyn EmbeddingSession>,
    /// The normalised images of a block: `[image, row, column, channel]`.
    inputs: Vec<f32>,
    /// Their embeddings: `[image, dim]`.
    features: Vec<f32>,
}

impl Embedder {
    /// Opens a backbone by its name or its file, with a cache at `location`.
    pub fn open(
        name_or_path: impl AsRef<Path>,
        options: &BackboneOptions,
        location: &CacheLocation,
    ) -> Result<Self> {
        Ok(Self::new(Backbone::find(name_or_path, options)?, location))
    }

    /// Makes an embedder of a backbone. A Conv4 is faster than the cache, so its embeddings are cached only if
    /// `location` names a folder.
    pub fn new(backbone: Backbone, location: &CacheLocation) -> Self {
        let folder =
            location.folder().filter(|_| *location != CacheLocation::Default || backbone.is_costly());
        let cache = folder.map(|folder| EmbeddingCache::open(&folder, &backbone.identity(), backbone.dim()));
        Embedder {
            backbone,
            location: location.clone(),
            cache,
            limits: DecodeLimits::default(),
            idle: Mutex::default(),
            on_gpu_failure: None,
            fallback: OnceLock::new(),
        }
    }

    /// Falls back to the CPU when the GPU fails, and calls `notice` with the reason. The call that failed starts again,
    /// so that all its rows are computed on one device; later calls use the CPU.
    pub fn with_cpu_fallback(self, notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Embedder { on_gpu_failure: Some(Box::new(notice)), ..self }
    }

    /// Calls `work`; if the GPU fails and there is a fallback, calls it again with the embedder on the CPU.
    pub(crate) fn with_fallback<T>(&self, work: impl Fn(&Embedder) -> Result<T>) -> Result<T> {
        if let Some(cpu) = self.fallback.get() {
            return work(cpu);
        }
        let outcome = work(self);
        let Err(Error::Core(trueshot::Error::Gpu { message, .. })) = &outcome else { return outcome };
        let Some(notice) = &self.on_gpu_failure else { return outcome };
        let Some(backbone) = self.backbone.on_cpu() else { return outcome };
        let cpu = self.fallback.get_or_init(|| {
            notice(message);
            Box::new(Embedder::new(backbone, &self.location).with_decode_limits(self.limits))
        });
        work(cpu)
    }

    /// Sets limits on images, for instance in a server that takes them from the network.
    pub fn with_decode_limits(self, limits: DecodeLimits) -> Self {
        Embedder { limits, ..self }
    }

    /// The backbone.
    pub fn backbone(&self) -> &Backbone {
        &self.backbone
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&EmbeddingCache> {
        let embedder = self.fallback.get().map_or(self, |cpu| cpu);
        embedder.cache.as_ref()
    }

    /// Embeds images on all threads of the current rayon pool. The progress counts the images; pass `&()` for none.
    ///
    /// # Errors
    /// If the network has failed, or the progress stops the work. An image that cannot be embedded is not an error of
    /// the call, but of its row.
    pub fn embed_images(&self, images: &[ImageInput<'_>], progress: &dyn Progress) -> Result<EmbeddedImages> {
        self.with_fallback(|embedder| embedder.embed_windows(images, progress))
    }

    /// Embeds images window by window, without fallback to the CPU.
    fn embed_windows(&self, images: &[ImageInput<'_>], progress: &dyn Progress) -> Result<EmbeddedImages> {
        let total = images.len() as u64;
        let mut embedded = EmbeddedImages {
            rows: Vec::with_capacity(images.len()),
            from_cache: 0,
            hashes: Vec::new(),
            measures: Vec::with_capacity(images.len()),
        };
        for images in images.chunks(self.window_len()) {
            let window = Window { progress, before: embedded.rows.len() as u64, total };
            for image in self.embed_window(images, window)? {
                embedded.from_cache += usize::from(image.was_cached);
                embedded.rows.push(image.row);
                embedded.hashes.push(image.hash);
                embedded.measures.push(image.measures);
            }
        }
        if let Some(cache) = &self.cache {
            cache.flush();
        }
        Ok(embedded)
    }

    /// Embeds the contents of image files: one result per file, in order.
    pub fn embed_bytes(&self, files: &[impl AsRef<[u8]> + Sync]) -> Result<Vec<EmbeddingResult>> {
        let images: Vec<ImageInput<'_>> = files.iter().map(|file| ImageInput::Bytes(file.as_ref())).collect();
        Ok(self.embed_images(&images, &())?.rows)
    }

    /// Embeds all readable images of a collection.
    ///
    /// # Errors
    /// Those of [`Embedder::embed_images`], and [`Error::NoImages`] if no image can be embedded.
    pub fn embed_collection(
        &self,
        collection: &Collection,
        progress: &dyn Progress,
    ) -> Result<EmbeddedCollection> {
        let images: Vec<ImageInput<'_>> =
            collection.entries().iter().map(|entry| ImageInput::Entry(collection, entry)).collect();
        let EmbeddedImages { rows, from_cache, hashes, measures } = self.embed_images(&images, progress)?;
        let mut skipped = collection.skipped().to_vec();
        let entries: Vec<u32> =
            (0..).zip(&rows).filter(|(_, row)| row.is_ok()).map(|(entry, _)| entry).collect();
        if entries.is_empty() {
            let unreadable = collection.entries().iter().zip(rows).filter_map(|(entry, row)| {
                let class = Some(collection.class_of(entry).to_owned());
                Some(Skipped { item: entry.item.clone(), class, reason: row.err()? })
            });
            // The message names an unreadable image rather than a file that is not an image.
            let first = unreadable.chain(skipped).next();
            return Err(Error::NoImages {
                path: collection.path().into(),
                skipped: first.as_ref().map(Skipped::to_string),
            });
        }
        let results = collection.entries().iter().zip(rows).zip(measures).map(|((entry, row), measures)| {
            (entry.item.clone(), collection.class_of(entry).to_owned(), row, measures)
        });
        let LabelledRows { embeddings, skipped: unreadable, measures, .. } =
            LabelledRows::from_results(results, &self.backbone)?;
        skipped.extend(unreadable);
        Ok(EmbeddedCollection { embeddings, entries, skipped, from_cache, hashes, measures })
    }

    /// The number of images in a window, which are processed at the same time.
    pub(crate) fn window_len(&self) -> usize {
        let per_thread = match self.backbone.queue() {
            None => self.backbone.batch_size() * BLOCKS_PER_THREAD,
            Some(_) => QUEUED_PER_THREAD,
        };
        per_thread * rayon::current_num_threads().max(1)
    }

    /// Embeds the images of a window on all threads.
    ///
    /// # Errors
    /// If the network has failed, or the progress stops the work.
    pub(crate) fn embed_window(
        &self,
        images: &[ImageInput<'_>],
        window: Window<'_>,
    ) -> Result<Vec<EmbeddedImage>> {
        let rows = match self.backbone.queue() {
            Some(queue) => self.embed_queued(queue, images, window)?,
            None => {
                let blocks = images.par_chunks(self.backbone.batch_size());
                let rows: Vec<Vec<EmbeddedImage>> = blocks.map(|block| self.embed_block(block)).collect();
                rows.into_iter().flatten().collect()
            }
        };
        self.backbone.check_network()?;
        if let Some(cache) = &self.cache {
            cache.flush_if_large();
        }
        window.progress.check(window.before + images.len() as u64, window.total)?;
        Ok(rows)
    }

    /// Decodes images on all threads, which submit them to the queue of the network, and waits for the rows.
    fn embed_queued(
        &self,
        queue: &BatchQueue,
        images: &[ImageInput<'_>],
        window: Window<'_>,
    ) -> Result<Vec<EmbeddedImage>> {
        let done = AtomicU64::new(window.before);
        let submit = |image: &ImageInput<'_>| {
            // After a failure of the GPU, the other images are not decoded.
            self.backbone.check_network()?;
            let submitted = self.submit(queue, image);
            window.progress.check(done.fetch_add(1, Ordering::Relaxed) + 1, window.total)?;
            Ok(submitted)
        };
        // Threads take single images rather than blocks, so that no thread is left with a block when the other threads
        // have finished.
        let submitted: Vec<SubmittedImage> =
            images.par_iter().with_max_len(1).map(submit).collect::<Result<_>>()?;
        let finish = |SubmittedImage { source, hash, measures }: SubmittedImage| {
            let (row, was_cached) = match source {
                RowSource::Cache(row) => (Ok(row), true),
                RowSource::Unreadable(reason) => (Err(reason), false),
                RowSource::Network(key, row) => {
                    (row.wait().and_then(|row| check_and_cache(&row, key, &measures, self)), false)
                }
            };
            EmbeddedImage { row, was_cached, hash, measures }
        };
        Ok(submitted.into_iter().map(finish).collect())
    }

    /// Reads an image and submits it to the queue, unless its row was in the cache.
    fn submit(&self, queue: &BatchQueue, image: &ImageInput<'_>) -> SubmittedImage {
        self.read(image).map_input(|resized| queue.submit(resized.pixels))
    }

    /// Looks up an image in the cache, or decodes, measures and resizes it.
    fn read(&self, image: &ImageInput<'_>) -> ReadImage {
        // Set as soon as they are known, so that they are kept if a later step fails.
        let (mut hash, mut measures) = (None, None);
        let mut attempt = || {
            let contents = self.read_contents(image)?;
            let key = Embedder::content_hash(&contents);
            hash = matches!(contents, ImageContents::File(_)).then_some(key);
            match self.cache.as_ref().and_then(|cache| cache.get(&key)) {
                Some(cached) => {
                    measures = Some(cached.measures);
                    Ok(RowSource::Cache(cached.row))
                }
                None => {
                    let (measured, resized) = self.decode_and_resize(contents)?;
                    measures = Some(measured);
                    Ok(RowSource::Network(key, resized))
                }
            }
        };
        let source = attempt().unwrap_or_else(RowSource::Unreadable);
        ReadImage { source, hash, measures }
    }

    /// Embeds images on the current thread.
    fn embed_block(&self, images: &[ImageInput<'_>]) -> Vec<EmbeddedImage> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let idle_worker = idle().pop();
        let mut worker = idle_worker.unwrap_or_else(|| EmbedWorker {
            session: self.backbone.session(),
            inputs: Vec::new(),
            features: Vec::new(),
        });
        let rows = worker.embed(self, images);
        idle().push(worker);
        rows
    }

    /// The cache key of an image: a hash of its file, or of its size and pixels if it is not a file.
    fn content_hash(contents: &ImageContents) -> ContentHash {
        match contents {
            ImageContents::File(bytes) => *blake3::hash(bytes).as_bytes(),
            ImageContents::Pixels(image) => {
                let mut hasher = blake3::Hasher::new_derive_key("trueshot pixels 1");
                for number in [image.width, image.height, image.channels.count()] {
                    hasher.update(&(number as u64).to_le_bytes());
                }
                *hasher.update(&image.pixels).finalize().as_bytes()
            }
        }
    }

    /// The bytes of an image file, or the pixels of an image that is stored as pixels.
    fn read_contents(&self, image: &ImageInput<'_>) -> std::result::Result<ImageContents, Unreadable> {
        match image {
            ImageInput::File(path) => Ok(ImageContents::File(source::file_bytes(path)?.into())),
            ImageInput::Bytes(bytes) => Ok(ImageContents::File(Bytes::copy_from_slice(bytes))),
            ImageInput::Entry(collection, entry) => {
                collection.contents(entry, self.backbone.preprocessing().channels)
            }
        }
    }

    /// Decodes an image, measures it and resizes it to the input size of the network.
    fn decode_and_resize(
        &self,
        contents: ImageContents,
    ) -> std::result::Result<(ImageMeasures, DecodedImage), Unreadable> {
        let to = self.backbone.preprocessing();
        let process = |image: DecodedImage| (measure(&image), to.fitted(image));
        match contents {
            ImageContents::Pixels(image) => Ok(process(image)),
            ImageContents::File(bytes) => {
                DecodedImage::decode_then(&bytes, to.channels, &self.limits, process)
            }
        }
    }
}

/// The position of a window among all images, from which progress is reported.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    pub progress: &'a dyn Progress,
    /// Images of earlier windows.
    pub before: u64,
    /// Images of all windows.
    pub total: u64,
}

/// Where the row of an image comes from.
enum RowSource<T> {
    /// The row was in the cache.
    Cache(Vec<f32>),
    /// The network computes the row, which is cached under this key. `T` is what it is computed from: the resized
    /// image; a row that the queue is computing; or nothing, if the input has been appended to the inputs of a block.
    Network(ContentHash, T),
    /// The image cannot be read.
    Unreadable(Unreadable),
}

/// The state of one image after reading, with the hash of its file and its measures; `T` as in [`RowSource`].
struct ReadImage<T = DecodedImage> {
    source: RowSource<T>,
    hash: Option<ContentHash>,
    measures: Option<ImageMeasures>,
}

impl<T> ReadImage<T> {
    /// Replaces what the network computes the row from, if the network computes it.
    fn map_input<U>(self, convert: impl FnOnce(T) -> U) -> ReadImage<U> {
        let ReadImage { source, hash, measures } = self;
        let source = match source {
            RowSource::Cache(row) => RowSource::Cache(row),
            RowSource::Unreadable(reason) => RowSource::Unreadable(reason),
            RowSource::Network(key, input) => RowSource::Network(key, convert(input)),
        };
        ReadImage { source, hash, measures }
    }
}

/// An image whose row is being computed.
type SubmittedImage = ReadImage<PendingRow>;

impl EmbedWorker {
    /// Embeds a block: reads all images, embeds those that are not in the cache with one call of the network, and
    /// returns one result per image. If the network fails, all of these images have its error.
    fn embed(&mut self, embedder: &Embedder, images: &[ImageInput<'_>]) -> Vec<EmbeddedImage> {
        let backbone = &embedder.backbone;
        self.inputs.clear();
        let prepared: Vec<ReadImage<()>> = images.iter().map(|image| self.prepare(embedder, image)).collect();
        self.features.resize(self.inputs.len() / backbone.preprocessing().input_len() * backbone.dim(), 0.0);
        let outcome = self.session.embed(&self.inputs, &mut self.features);
        let mut rows = self.features.chunks_exact(backbone.dim());
        let result = |ReadImage { source, hash, measures }: ReadImage<()>| {
            let (row, was_cached) = match source {
                RowSource::Cache(row) => (Ok(row), true),
                RowSource::Unreadable(reason) => (Err(reason), false),
                RowSource::Network(key, ()) => {
                    let row = rows.next().expect("a row for every appended input");
                    (outcome.clone().and_then(|()| check_and_cache(row, key, &measures, embedder)), false)
                }
            };
            EmbeddedImage { row, was_cached, hash, measures }
        };
        prepared.into_iter().map(result).collect()
    }

    /// Looks up an image in the cache, or appends its network input.
    fn prepare(&mut self, embedder: &Embedder, image: &ImageInput<'_>) -> ReadImage<()> {
        embedder.read(image).map_input(|resized| {
            let to = embedder.backbone.preprocessing();
            let start = self.inputs.len();
            self.inputs.resize(start + to.input_len(), 0.0);
            to.normalise(&resized, &mut self.inputs[start..]);
        })
    }
}

/// Checks that the values of a computed row are finite, stores it in the cache with the measures of its image, and
/// returns it.
fn check_and_cache(
    row: &[f32],
    key: ContentHash,
    measures: &Option<ImageMeasures>,
    embedder: &Embedder,
) -> EmbeddingResult {
    if let Some(place) = row.iter().position(|value| !value.is_finite()) {
        return Err(Unreadable::NotFinite { place, value: row[place].to_string() });
    }
    if let (Some(cache), Some(measures)) = (&embedder.cache, measures) {
        cache.put(key, CachedImage { row: row.to_vec(), measures: measures.clone() });
    }
    Ok(row.to_vec())
}

#[cfg(test)]
mod tests;
