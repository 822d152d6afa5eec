//! Tests of the interface between the embedder and networks, with a network that is not part of the crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::{ImageFormat, Rgb, RgbImage};
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::network::{EmbeddingNetwork, EmbeddingSession};
use trueshot_vision::{Backbone, Embedder, Preprocessing, Unreadable};

const SIZE: usize = 4;
const PIXELS: usize = SIZE * SIZE * 3;
const BATCH: usize = 3;

/// Embeds an image as its first pixel, fails on images whose red is not 0, and counts images per call.
#[derive(Default, Clone)]
struct FirstPixel {
    largest_batch: Arc<AtomicUsize>,
    sessions: Arc<AtomicUsize>,
}

impl EmbeddingNetwork for FirstPixel {
    fn dim(&self) -> usize {
        3
    }

    fn input_len(&self) -> usize {
        PIXELS
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
        self.largest_batch.fetch_max(images.len() / PIXELS, Ordering::Relaxed);
        for (image, row) in images.chunks_exact(PIXELS).zip(out.chunks_exact_mut(3)) {
            if image[0] != 0.0 {
                return Err(Unreadable::Network("red".into()));
            }
            row.copy_from_slice(&image[..3]);
        }
        Ok(())
    }
}

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
    let files: Vec<Vec<u8>> = (0..20).map(|green| png(0, green)).collect();
    let rows = embedder.embed_bytes(&files).unwrap();
    for (green, row) in rows.iter().enumerate() {
        let row: Vec<f32> = row.as_ref().unwrap().iter().map(|value| value.round()).collect();
        assert_eq!(row, [0.0, green as f32, 7.0]);
    }
    assert_eq!(network.largest_batch.load(Ordering::Relaxed), BATCH);
    assert!(network.sessions.load(Ordering::Relaxed) <= rayon::current_num_threads());
}

#[test]
fn a_batch_that_fails_is_reported_for_its_images_and_no_others() {
    let backbone = Backbone::from_network(Box::new(FirstPixel::default()), preprocessing(), "first pixel");
    let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
    let files: Vec<Vec<u8>> = (0..6).map(|number| png(if number == 1 { 9 } else { 0 }, number)).collect();
    let rows = embedder.embed_bytes(&files).unwrap();
    let failed: Vec<bool> = rows.iter().map(Result::is_err).collect();
    assert_eq!(failed, [true, true, true, false, false, false]);
}

#[test]
#[should_panic(expected = "values of an input image")]
fn a_network_that_takes_images_of_another_size_is_a_mistake_of_the_caller() {
    Backbone::from_network(Box::new(FirstPixel::default()), Preprocessing::colour(SIZE + 1), "first pixel");
}
