//! Tests without a GPU, and with the feature `emulator` tests on the emulated device.

use trueshot::embeddings::{Embeddings, Precision};

use super::*;
use crate::backbone::{Backbone, BackboneOptions, EFFICIENTNET_ARCHITECTURE};
use crate::cache::CacheLocation;
use crate::embed::{EmbedRequest, embed};
use crate::embedder::Embedder;
use crate::source::{Collection, SourceOptions};
use crate::testing::photograph;

/// EfficientNet-Lite0 for small images, since the emulator is slow.
fn backbone(size: usize) -> Backbone {
    let options = BackboneOptions { size: Some(size), ..BackboneOptions::default() };
    Backbone::find(EFFICIENTNET_ARCHITECTURE, &options).unwrap()
}

/// A backbone on a GPU without free memory.
fn on_full_gpu() -> Backbone {
    let mut backbone = backbone(32);
    let open = || Err(GpuError::OutOfMemory { needed: 20, free: 1, total: 40 });
    backbone.start_on_device("a full GPU".into(), open).unwrap();
    backbone
}

#[test]
fn the_cpu_takes_over_from_a_gpu_that_fails_and_without_a_fallback_the_failure_is_the_error() {
    let files: Vec<Vec<u8>> = (0..5).map(photograph).collect();
    let new = |backbone| Embedder::new(backbone, &CacheLocation::Disabled);
    let error = new(on_full_gpu()).embed_bytes(&files).err().unwrap();
    assert!(error.to_string().contains("20 MiB are needed and 1 MiB of 40 MiB are free"), "{error}");
    assert!(error.hint().unwrap().contains("use the CPU or smaller images"), "{:?}", error.hint());
    let notices = Arc::new(std::sync::Mutex::new(Vec::new()));
    let received = notices.clone();
    let embedder =
        new(on_full_gpu()).with_cpu_fallback(move |reason| received.lock().unwrap().push(reason.to_owned()));
    let (rows, expected) = (embedder.embed_bytes(&files).unwrap(), new(backbone(32)).embed_bytes(&files));
    assert_eq!(rows, expected.unwrap());
    assert!(embedder.embed_bytes(&files[..1]).unwrap()[0].is_ok());
    let notices = notices.lock().unwrap();
    assert!(notices.len() == 1 && notices[0].contains("out of GPU memory"), "{notices:?}");
}

#[test]
fn if_the_gpu_fails_all_rows_of_a_file_are_from_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("owl")).unwrap();
    (0..3).for_each(|n| std::fs::write(folder.path().join(format!("owl/{n}.png")), photograph(n)).unwrap());
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let output = folder.path().join("rows.safetensors");
    let write = |embedder: &Embedder| {
        let (copies, precision, seed, min_per_class) = (None, Precision::F32, 0, 1);
        let collection = &collection;
        let request = EmbedRequest { collection, embedder, copies, precision, seed, min_per_class };
        embed(&request, &output, &()).unwrap();
        std::fs::read(&output).unwrap()
    };
    let new = |backbone| Embedder::new(backbone, &CacheLocation::Disabled);
    let fallen_back = write(&new(on_full_gpu()).with_cpu_fallback(|_| {}));
    assert_eq!(Embeddings::open(&output).unwrap().len(), 3);
    assert!(fallen_back == write(&new(backbone(32))), "the file is that of the CPU, and names no GPU");
}

#[test]
fn a_batch_that_does_not_fit_is_halved_down_to_a_single_image() {
    let full = || GpuError::OutOfMemory { needed: 2, free: 1, total: 4 };
    let tried = std::cell::RefCell::new(Vec::new());
    let fits = |most: usize| {
        tried.borrow_mut().clear();
        largest_batch(|batch| {
            tried.borrow_mut().push(batch);
            if batch > most { Err(full()) } else { Ok(batch) }
        })
    };
    assert_eq!(fits(64), Ok(64));
    assert_eq!(fits(17), Ok(16));
    assert_eq!(fits(0), Err(full()));
    assert_eq!(*tried.borrow(), [64, 32, 16, 8, 4, 2, 1]);
    let failed = largest_batch(|_| Err::<(), _>(GpuError::NoDevice));
    assert_eq!(failed, Err(GpuError::NoDevice), "after another error, no smaller batch is tried");
}

/// Tests on the emulated device.
#[cfg(feature = "emulator")]
mod emulated {
    use std::path::Path;

    use super::*;

    /// [`backbone`] on the emulated device.
    fn on_gpu(size: usize) -> Backbone {
        let mut backbone = backbone(size);
        backbone.move_to_gpu(&Device::emulated(false)).unwrap();
        backbone
    }

    /// The files of three photographs.
    fn photographs() -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/efficientnet");
        (0..3).map(|number| std::fs::read(folder.join(format!("{number}.png"))).unwrap()).collect()
    }

    fn norm(values: &[f32]) -> f32 {
        values.iter().map(|value| value * value).sum::<f32>().sqrt()
    }

    #[test]
    fn the_built_in_backbone_embeds_on_the_gpu_nearly_as_on_the_cpu() {
        // At 224 px the errors are below 0.002: the mean is over more positions.
        let size = 96;
        let embed = |backbone: Backbone| {
            let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
            let rows = embedder.embed_bytes(&photographs()).unwrap();
            rows.into_iter().map(Result::unwrap).collect::<Vec<Vec<f32>>>()
        };
        for (gpu, cpu) in embed(on_gpu(size)).iter().zip(embed(backbone(size))) {
            let difference: Vec<f32> = gpu.iter().zip(&cpu).map(|(gpu, cpu)| gpu - cpu).collect();
            let error = norm(&difference) / norm(&cpu);
            let product: f32 = gpu.iter().zip(&cpu).map(|(gpu, cpu)| gpu * cpu).sum();
            let cosine = product / (norm(gpu) * norm(&cpu));
            println!("relative error {error:.6}, cosine {cosine:.7}");
            assert!(error < 3.5e-3 && cosine > 0.99999, "{error}, {cosine}");
        }
    }

    #[test]
    fn a_session_and_the_queue_give_the_same_rows() {
        let backbone = on_gpu(64);
        let to = backbone.preprocessing().clone();
        let mut inputs = Vec::new();
        for file in photographs() {
            let image = crate::DecodedImage::decode(&file, to.channels).unwrap();
            let start = inputs.len();
            inputs.resize(start + to.input_len(), 0.0);
            to.normalise(&to.fitted(image), &mut inputs[start..]);
        }
        let mut rows = vec![0.0; 3 * backbone.dim()];
        backbone.session().embed(&inputs, &mut rows).unwrap();
        let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
        let expected = embedder.embed_bytes(&photographs()).unwrap();
        for (row, expected) in rows.chunks_exact(1280).zip(expected) {
            assert_eq!(row, expected.unwrap());
        }
    }

    #[test]
    fn rows_of_the_gpu_and_of_the_cpu_are_cached_separately() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheLocation::Folder(folder.path().into());
        let from_cache = |backbone: Backbone| {
            let embedder = Embedder::new(backbone, &cache);
            let files = photographs();
            let images: Vec<_> = files.iter().map(|file| crate::ImageInput::Bytes(file)).collect();
            embedder.embed_images(&images, &()).unwrap().from_cache
        };
        assert_eq!(from_cache(backbone(64)), 0);
        assert_eq!(from_cache(on_gpu(64)), 0, "a row of the CPU is not a row of the GPU");
        assert_eq!((from_cache(on_gpu(64)), from_cache(backbone(64))), (3, 3));
    }

    #[test]
    fn a_file_that_changes_after_the_folder_was_listed_affects_its_own_result_only() {
        let (folder, collection) = crate::testing::changed_folder();
        let embedder = Embedder::new(on_gpu(64), &CacheLocation::Disabled);
        let embedded = embedder.embed_collection(&collection, &()).unwrap();
        crate::testing::assert_changes_are_reported(&embedded, &collection);
        drop(folder);
    }
}
