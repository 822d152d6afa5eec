//! Tests of the interface between the embedder and networks, with a network that is not part of the crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::{ImageFormat, Rgb, RgbImage};
use trueshot::embeddings::Precision;
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::embed::{EmbedReport, EmbedRequest, embed};
use trueshot_vision::network::{EmbeddingNetwork, EmbeddingSession};
use trueshot_vision::{
    Augmentation, Backbone, Collection, Embedder, Preprocessing, SourceOptions, Unreadable,
};

const SIZE: usize = 4;
const INPUT_LEN: usize = SIZE * SIZE * 3;
const BATCH: usize = 3;

/// Embeds an image as its first pixel, and fails on a batch with an image whose first red value is above 1.
#[derive(Default, Clone)]
struct FirstPixel {
    batches: Arc<AtomicUsize>,
    largest_batch: Arc<AtomicUsize>,
    sessions: Arc<AtomicUsize>,
}

impl EmbeddingNetwork for FirstPixel {
    fn dim(&self) -> usize {
        3
    }

    fn input_len(&self) -> usize {
        INPUT_LEN
    }

    fn batch_size(&self) -> usize {
        BATCH
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Box::new(self.clone())
    }
}

impl EmbeddingSession for FirstPixel {
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.largest_batch.fetch_max(images.len() / INPUT_LEN, Ordering::Relaxed);
        for (image, row) in images.chunks_exact(INPUT_LEN).zip(out.chunks_exact_mut(3)) {
            if image[0] > 1.0 {
                return Err(Unreadable::Network("red".into()));
            }
            row.copy_from_slice(&image[..3]);
        }
        Ok(())
    }
}

/// Leaves the values of pixels as they are, 0 to 255.
fn preprocessing() -> Preprocessing {
    Preprocessing { mean: vec![0.0; 3], std: vec![1.0 / 255.0; 3], ..Preprocessing::colour(SIZE) }
}

fn png(red: u8, green: u8) -> Vec<u8> {
    crate::image_kinds::file(RgbImage::from_pixel(8, 8, Rgb([red, green, 7])), ImageFormat::Png)
}

#[test]
fn a_network_of_another_crate_gets_whole_batches_and_its_rows_come_in_order() {
    let network = FirstPixel::default();
    let backbone = Backbone::from_network(Box::new(network.clone()), preprocessing(), "first pixel");
    let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
    // Every image has another green, so that every row can be matched with its file.
    let files: Vec<Vec<u8>> = (0..20).map(|green| png(0, green)).collect();
    let rows = embedder.embed_bytes(&files).unwrap();
    for (green, row) in rows.iter().enumerate() {
        let row: Vec<f32> = row.as_ref().unwrap().iter().map(|value| value.round()).collect();
        assert_eq!(row, [0.0, green as f32, 7.0]);
    }
    assert_eq!(network.batches.load(Ordering::Relaxed), 20_usize.div_ceil(BATCH));
    assert_eq!(network.largest_batch.load(Ordering::Relaxed), BATCH);
    // Sessions are used again: one per thread is enough.
    assert!(network.sessions.load(Ordering::Relaxed) <= rayon::current_num_threads());
}

#[test]
fn a_batch_that_fails_is_reported_for_its_images_and_no_others() {
    let backbone = Backbone::from_network(Box::new(FirstPixel::default()), preprocessing(), "first pixel");
    let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
    // Image 1 is red, so its batch fails, which has the images 0 to 2.
    let files: Vec<Vec<u8>> = (0..6).map(|number| png(if number == 1 { 9 } else { 0 }, number)).collect();
    let rows = embedder.embed_bytes(&files).unwrap();
    let failed: Vec<bool> = rows.iter().map(Result::is_err).collect();
    assert_eq!(failed, [true, true, true, false, false, false]);
}

/// Embeds the images of one class, `0.png`, `1.png` and so on, in f16.
fn embedded_in_f16(backbone: Backbone, images: &[Vec<u8>], copies: Option<usize>) -> EmbedReport {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("class")).unwrap();
    for (number, image) in images.iter().enumerate() {
        std::fs::write(folder.path().join(format!("class/{number}.png")), image).unwrap();
    }
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
    let colours =
        Augmentation { brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.0, ..Augmentation::default() };
    let request = EmbedRequest {
        collection: &collection,
        embedder: &embedder,
        copies: copies.map(|copies| (copies, &colours)),
        precision: Precision::F16,
        seed: 5,
        min_per_class: 1,
    };
    embed(&request, &folder.path().join("rows.safetensors"), &()).unwrap()
}

#[test]
fn copies_of_an_image_on_which_the_network_fails_are_skipped_and_no_others() {
    let backbone = Backbone::from_network(Box::new(FirstPixel::default()), preprocessing(), "first pixel");
    let images: Vec<Vec<u8>> = (0..6).map(|number| png(if number == 1 { 9 } else { 0 }, number)).collect();
    // The copies of one image are a batch.
    let report = embedded_in_f16(backbone, &images, Some(BATCH));
    let skipped: Vec<&str> = report.skipped.iter().map(|skipped| skipped.item.as_str()).collect();
    assert_eq!((skipped, report.rows), (vec!["class/1.png"], 5 * BATCH));
}

#[test]
fn an_image_whose_embedding_is_too_large_for_the_precision_is_skipped() {
    // Values of pixels times 1000.
    let to = Preprocessing { std: vec![1.0 / 255_000.0; 3], ..preprocessing() };
    for copies in [None, Some(2)] {
        let backbone = Backbone::from_network(Box::new(FirstPixel::default()), to.clone(), "first pixel");
        let report = embedded_in_f16(backbone, &[png(0, 5), png(0, 100), png(0, 60)], copies);
        let [skipped] = &report.skipped[..] else { panic!("{:?}", report.skipped) };
        assert_eq!((skipped.item.as_str(), report.images), ("class/1.png", 2));
        let reason = skipped.reason.to_string();
        assert!(reason.ends_with(" (dimension 1), which this precision cannot store"), "{reason}");
    }
}

#[test]
#[should_panic(expected = "values of an input image")]
fn a_network_with_another_input_size_than_the_preprocessing_panics() {
    Backbone::from_network(Box::new(FirstPixel::default()), Preprocessing::colour(SIZE + 1), "first pixel");
}
