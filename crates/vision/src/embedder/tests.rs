//! Tests of networks behind a queue, of fallbacks, and of folders that change.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::batch_queue::{BatchShape, DeviceFailure};
use crate::network::EmbeddingNetwork;
use crate::preprocess::Preprocessing;
use crate::testing::{assert_changes_are_reported, changed_folder, photograph};

const SIZE: usize = 8;

/// A network behind a queue, on a pretended GPU. The embedding of an image is its mean byte and its first byte.
struct QueuedMean(BatchQueue);

impl QueuedMean {
    /// A backbone that fails at the batch that exceeds `good_images` images.
    fn backbone(good_images: usize) -> Backbone {
        let shape = BatchShape { image_len: SIZE * SIZE * 3, dim: 2, batch: 4 };
        let queue = BatchQueue::start(shape, move || {
            let mut left = good_images;
            Ok(Box::new(move |images: &[u8]| {
                let count = images.len() / shape.image_len;
                left = left.checked_sub(count).ok_or_else(|| DeviceFailure {
                    message: "the GPU stopped working: for the test".into(),
                    hint: "look".into(),
                })?;
                let row = |image: &[u8]| {
                    let sum: u32 = image.iter().map(|&byte| u32::from(byte)).sum();
                    [sum as f32 / image.len() as f32, image[0].into()]
                };
                Ok(images.chunks_exact(shape.image_len).flat_map(row).collect())
            }))
        });
        Backbone::from_network(Box::new(QueuedMean(queue)), Preprocessing::colour(SIZE), "mean")
    }
}

impl EmbeddingNetwork for QueuedMean {
    fn dim(&self) -> usize {
        2
    }

    fn input_len(&self) -> usize {
        SIZE * SIZE * 3
    }

    fn batch_size(&self) -> usize {
        4
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        unreachable!("images go through the queue")
    }

    fn queue(&self) -> Option<&BatchQueue> {
        Some(&self.0)
    }

    fn failure(&self) -> Option<trueshot::Error> {
        self.0.failure().map(Into::into)
    }
}

/// The row of a file by [`QueuedMean`].
fn expected(file: &[u8]) -> Vec<f32> {
    let to = Preprocessing::colour(SIZE);
    let image = to.fitted(DecodedImage::decode(file, to.channels).unwrap());
    let sum: u32 = image.pixels.iter().map(|&byte| u32::from(byte)).sum();
    vec![sum as f32 / image.pixels.len() as f32, image.pixels[0].into()]
}

#[test]
fn rows_from_a_queue_are_in_the_order_of_the_images_even_if_some_cannot_be_read() {
    let files: Vec<Vec<u8>> = (0..23)
        .map(|number| if number % 5 == 3 { vec![number; 10] } else { photograph(10 * number) })
        .collect();
    let embedder = Embedder::new(QueuedMean::backbone(usize::MAX), &CacheLocation::Disabled);
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let rows = pool.install(|| embedder.embed_bytes(&files)).unwrap();
        for (number, (row, file)) in rows.into_iter().zip(&files).enumerate() {
            match number % 5 {
                3 => assert_eq!(row, Err(Unreadable::Format)),
                _ => assert_eq!(row, Ok(expected(file)), "image {number}"),
            }
        }
    }
}

#[test]
fn progress_through_a_queue_counts_every_image_and_can_stop_the_work() {
    let files: Vec<Vec<u8>> = (0..9).map(photograph).collect();
    let images: Vec<ImageInput<'_>> = files.iter().map(|file| ImageInput::Bytes(file)).collect();
    let embedder = Embedder::new(QueuedMean::backbone(usize::MAX), &CacheLocation::Disabled);
    let (calls, most) = (Arc::new(AtomicUsize::new(0)), AtomicU64::new(0));
    let count = |done: u64, total: u64| {
        assert_eq!(total, 9);
        calls.fetch_add(1, Ordering::Relaxed);
        most.fetch_max(done, Ordering::Relaxed);
        std::ops::ControlFlow::Continue(())
    };
    embedder.embed_images(&images, &count).unwrap();
    assert!(calls.load(Ordering::Relaxed) >= 9 && most.load(Ordering::Relaxed) == 9);
    let stop = |_: u64, _: u64| std::ops::ControlFlow::Break(());
    let stopped = embedder.embed_images(&images, &stop);
    assert!(matches!(stopped, Err(Error::Core(trueshot::Error::Interrupted))));
}

#[test]
fn a_device_that_fails_ends_the_work_with_its_error_and_no_rows_are_cached() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CacheLocation::Folder(folder.path().into());
    let files: Vec<Vec<u8>> = (0..9).map(photograph).collect();
    // There is no fallback for a network that exists only on the device.
    let embedder = Embedder::new(QueuedMean::backbone(0), &cache)
        .with_cpu_fallback(|_| panic!("there is no CPU to fall back to"));
    let error = embedder.embed_bytes(&files).err().unwrap();
    assert!(error.to_string().contains("stopped working: for the test"), "{error}");
    drop(embedder);
    let again = Embedder::new(QueuedMean::backbone(usize::MAX), &cache);
    let images: Vec<ImageInput<'_>> = files.iter().map(|file| ImageInput::Bytes(file)).collect();
    assert_eq!(again.embed_images(&images, &()).unwrap().from_cache, 0);
}

#[test]
#[cfg(feature = "emulator")]
fn a_network_of_another_crate_cannot_be_moved_to_a_gpu() {
    let mut backbone = QueuedMean::backbone(1);
    assert!(!backbone.runs_on_gpu());
    let refused = backbone.move_to_gpu(&trueshot_cuda::Device::emulated(true)).unwrap_err().to_string();
    assert!(refused.contains("only Conv4 and EfficientNet-Lite0 can"), "{refused}");
}

#[test]
fn a_file_that_changes_after_the_folder_was_listed_affects_its_own_result_only() {
    let backbones: [Backbone; 2] = [
        QueuedMean::backbone(usize::MAX),
        Backbone::find("efficientnet-lite0", &BackboneOptions { size: Some(32), ..Default::default() })
            .unwrap(),
    ];
    for backbone in backbones {
        let (_folder, collection) = changed_folder();
        let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
        assert_changes_are_reported(&embedder.embed_collection(&collection, &()).unwrap(), &collection);
    }
}
