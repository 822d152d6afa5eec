//! Tests of embedding in memory: files, bytes and collections, with and without a cache.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use image::{ImageFormat, Rgb, RgbImage};
use trueshot_vision::backbone::{BackboneOptions, EFFICIENTNET_ARCHITECTURE};
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::{
    Backbone, Collection, DecodeLimits, Embedder, Error, Fit, ImageInput, Resampling, SourceOptions,
    Unreadable,
};

/// Small images make the network fast.
fn small() -> BackboneOptions {
    BackboneOptions { size: Some(32), ..BackboneOptions::default() }
}

fn embedder(location: &CacheLocation) -> Embedder {
    Embedder::open(EFFICIENTNET_ARCHITECTURE, &small(), location).unwrap()
}

fn png(shade: u8) -> Vec<u8> {
    let pixel = |x: u32, y: u32| Rgb([shade, (x * 7) as u8, (y * 5) as u8 ^ shade]);
    crate::image_kinds::file(RgbImage::from_fn(40, 30, pixel), ImageFormat::Png)
}

/// Two classes of three images, and a truncated one in the second.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..6 {
        let class = folder.path().join(if number < 3 { "ant" } else { "owl" });
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{number}.png")), png(40 * number)).unwrap();
    }
    std::fs::write(folder.path().join("owl/broken.png"), &png(9)[..60]).unwrap();
    folder
}

fn entries(collection: &Collection) -> Vec<ImageInput<'_>> {
    collection.entries().iter().map(|entry| ImageInput::Entry(collection, entry)).collect()
}

#[test]
fn the_built_in_backbone_has_its_name_size_and_normalisation() {
    let embedder =
        Embedder::open(EFFICIENTNET_ARCHITECTURE, &BackboneOptions::default(), &CacheLocation::Disabled)
            .unwrap();
    let backbone = embedder.backbone();
    assert!(
        backbone.name().starts_with("efficientnet-lite0 (efficientnet-lite0, 224 px, "),
        "{}",
        backbone.name()
    );
    assert_eq!((backbone.dim(), backbone.preprocessing().size), (1280, 224));
    let to = backbone.preprocessing();
    let byte = |value: f32| (value / 255.0 - to.mean[0]) / to.std[0];
    assert!((byte(127.0)).abs() < 1e-6 && (byte(255.0) - 1.0).abs() < 1e-6);
}

#[test]
fn options_that_change_the_embeddings_change_the_name_of_the_backbone() {
    for backbone in [EFFICIENTNET_ARCHITECTURE, "omniglot-conv4"] {
        let name = |fit: Option<Fit>, resampling: Option<Resampling>| {
            let options = BackboneOptions { fit, resampling, ..BackboneOptions::default() };
            Backbone::find(backbone, &options).unwrap().name().to_owned()
        };
        let usual = name(None, None);
        assert_eq!(name(Some(Fit::Squash), None), usual);
        let start = usual.strip_suffix(')').unwrap();
        assert_eq!(name(Some(Fit::Crop), None), format!("{start}, crop)"));
        let resampled =
            [Resampling::Bilinear, Resampling::Bicubic].map(|one| name(Some(Fit::Crop), Some(one)));
        assert_eq!(resampled.iter().filter(|name| **name == format!("{start}, crop)")).count(), 1);
        assert_ne!(resampled[0], resampled[1]);
    }
}

#[test]
fn a_truncated_image_is_skipped_and_the_others_are_embedded() {
    let folder = folder();
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let embedded = embedder(&CacheLocation::Disabled).embed_collection(&collection, &()).unwrap();
    assert_eq!(
        (embedded.embeddings.len(), embedded.embeddings.classes()),
        (6, &["ant".into(), "owl".into()][..])
    );
    assert_eq!(embedded.embeddings.item(0), Some("ant/0.png"));
    assert!(embedded.embeddings.backbone().unwrap().starts_with("efficientnet-lite0"));
    assert_eq!(embedded.skipped.len(), 1);
    assert_eq!(embedded.skipped[0].item, "owl/broken.png");
}

#[test]
fn if_all_images_are_damaged_the_error_names_one_and_not_another_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("ant")).unwrap();
    std::fs::write(folder.path().join("ant/1.png"), &png(9)[..60]).unwrap();
    std::fs::write(folder.path().join("ant/0.txt"), "notes").unwrap();
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let refused = embedder(&CacheLocation::Disabled).embed_collection(&collection, &()).err().unwrap();
    let message = refused.to_string();
    assert!(message.contains("the first file skipped: ant/1.png"), "{message}");
}

#[test]
fn files_bytes_and_entries_give_the_same_rows_on_any_number_of_threads() {
    let folder = folder();
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let paths: Vec<PathBuf> =
        collection.entries().iter().map(|entry| folder.path().join(&entry.item)).collect();
    let bytes: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let embedder = embedder(&CacheLocation::Disabled);
    let rows = |given: &[ImageInput<'_>], threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| embedder.embed_images(given, &())).unwrap().rows
    };
    let expected = rows(&entries(&collection), 1);
    assert_eq!(rows(&entries(&collection), 4), expected);
    assert_eq!(rows(&paths.iter().map(|path| ImageInput::File(path)).collect::<Vec<_>>(), 2), expected);
    assert_eq!(embedder.embed_bytes(&bytes).unwrap(), expected);
}

#[test]
fn rows_from_the_cache_have_the_same_bits_and_belong_to_the_contents_of_a_file() {
    let (folder, cache) = (folder(), tempfile::tempdir().unwrap());
    let location = CacheLocation::Folder(cache.path().into());
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let run = |location: &CacheLocation| embedder(location).embed_images(&entries(&collection), &()).unwrap();
    let plain = run(&CacheLocation::Disabled);
    let (first, second) = (run(&location), run(&location));
    assert_eq!((first.from_cache, second.from_cache), (0, 6));
    assert_eq!(first.rows, plain.rows);
    assert_eq!(second.rows, plain.rows);
    // The cache key is the contents of the file, not its name.
    std::fs::rename(folder.path().join("ant/0.png"), folder.path().join("ant/renamed.png")).unwrap();
    std::fs::write(folder.path().join("ant/1.png"), png(222)).unwrap();
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let third = embedder(&location).embed_images(&entries(&collection), &()).unwrap();
    assert_eq!(third.from_cache, 5);
    // Another size is another backbone.
    let larger =
        Embedder::open(EFFICIENTNET_ARCHITECTURE, &BackboneOptions { size: Some(48), ..small() }, &location)
            .unwrap();
    assert_eq!(larger.embed_images(&entries(&collection), &()).unwrap().from_cache, 0);
}

#[test]
fn limits_on_pixels_hold_before_anything_is_decoded() {
    let embedder = embedder(&CacheLocation::Disabled)
        .with_decode_limits(DecodeLimits { pixels: 1000, ..DecodeLimits::default() });
    let rows = embedder.embed_bytes(&[png(1), b"no picture".to_vec(), Vec::new()]).unwrap();
    assert_eq!(rows[0], Err(Unreadable::OverLimit { width: 40, height: 30, most: 1000 }));
    assert_eq!(rows[1], Err(Unreadable::Format));
    assert_eq!(rows[2], Err(Unreadable::Empty));
}

#[test]
fn a_call_that_the_progress_stops_returns_that_it_was_interrupted() {
    let folder = folder();
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let outcome = embedder(&CacheLocation::Disabled)
        .embed_images(&entries(&collection), &|_: u64, _: u64| ControlFlow::Break(()));
    assert!(matches!(outcome, Err(Error::Core(trueshot::Error::Interrupted))));
}

#[test]
fn unknown_names_and_options_that_a_backbone_does_not_take_are_refused() {
    let problem = |name: &str, options: &BackboneOptions| {
        let error = Backbone::find(name, options).err().unwrap();
        format!("{error} {}", error.hint().unwrap_or_default())
    };
    assert!(problem("efficientnet-b0", &small()).contains("built in: efficientnet-lite0 and omniglot-conv4"));
    assert!(
        problem(EFFICIENTNET_ARCHITECTURE, &BackboneOptions { size: Some(8), ..small() })
            .contains("32 to 1024")
    );
    assert!(
        problem(EFFICIENTNET_ARCHITECTURE, &BackboneOptions { mean: Some(vec![0.0]), ..small() })
            .contains("ONNX models only")
    );
    assert!(
        problem("omniglot-conv4", &small())
            .contains("the image size is given; allowed: for efficientnet-lite0 and ONNX models only")
    );
    assert!(problem("missing.safetensors", &small()).contains("missing.safetensors"));
}

/// The expected features come from onnxruntime, with images resized by Pillow: tests/python/write_features.py.
#[test]
fn features_of_photographs_are_those_of_onnxruntime() {
    let folder = Path::new("tests/efficientnet");
    let text = std::fs::read_to_string(folder.join("features.json")).unwrap();
    let expected: std::collections::BTreeMap<String, Vec<f32>> = serde_json::from_str(&text).unwrap();
    let embedder =
        Embedder::open(EFFICIENTNET_ARCHITECTURE, &BackboneOptions::default(), &CacheLocation::Disabled)
            .unwrap();
    for (name, expected) in expected {
        let bytes = std::fs::read(folder.join(&name)).unwrap();
        let found = embedder.embed_bytes(&[bytes]).unwrap().remove(0).unwrap();
        // The file contains every eighth number.
        let found: Vec<f32> = found.into_iter().step_by(8).collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let cosine = dot(&found, &expected) / (dot(&found, &found) * dot(&expected, &expected)).sqrt();
        assert!(cosine > 0.9995, "{name}: cosine {cosine}");
    }
}
