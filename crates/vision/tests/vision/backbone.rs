//! Tests of the built-in backbone against its reference, and of embedding with a backbone trained here.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use image::ImageFormat;
use trueshot::Embeddings;
use trueshot::embeddings::Precision;
use trueshot::model::named;
use trueshot::rng::{Purpose, Rng};
use trueshot::tensors::Tensors;
use trueshot_nn::conv4;
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::embed::{EmbedReport, EmbedRequest, embed};
use trueshot_vision::{
    Augmentation, Backbone, Channels, Collection, DecodedImage, Embedder, Error, Preprocessing, SourceOptions,
};

const SIZE: usize = 20;

/// A backbone with random parameters.
fn tensors(channels: usize) -> Tensors {
    let mut rng = Rng::new(7, Purpose::Parameters, 0);
    let parameters = conv4::initial(channels, &mut || f64::from(rng.uniform()));
    let mut tensors = named(&conv4::layout(channels), &parameters);
    let per_channel = |value: &str| [value; 3][..channels].join(",");
    tensors.set_note("architecture", "conv4");
    tensors.set_note("input_size", SIZE.to_string());
    tensors.set_note("mean", per_channel("0.5"));
    tensors.set_note("std", per_channel("0.25"));
    tensors
}

fn backbone() -> Backbone {
    Backbone::from_tensors(&tensors(3), "random").unwrap()
}

/// Two classes of images of every kind, and a file that is not an image.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (number, (name, bytes)) in crate::image_kinds::coloured().into_iter().enumerate() {
        let class = folder.path().join(["even", "odd"][number % 2]);
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("kind.{name}")), bytes).unwrap();
    }
    std::fs::write(folder.path().join("odd/broken.jpg"), b"not a picture").unwrap();
    folder
}

fn embedded(folder: &Path, copies: Option<usize>, threads: usize) -> (Vec<u8>, EmbedReport, PathBuf) {
    let output = folder.join(format!("out-{threads}.safetensors"));
    let collection = Collection::open(folder, SourceOptions::default()).unwrap();
    let embedder = Embedder::new(backbone(), &CacheLocation::Disabled);
    let augmentation = Augmentation::default();
    let request = EmbedRequest {
        collection: &collection,
        embedder: &embedder,
        copies: copies.map(|copies| (copies, &augmentation)),
        precision: Precision::F32,
        seed: 5,
        min_per_class: 1,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let report = pool.install(|| embed(&request, &output, &())).unwrap();
    (std::fs::read(&output).unwrap(), report, output)
}

#[test]
fn features_of_the_reference_backbone_are_those_of_the_reference_program() {
    let folder = Path::new("../../../shared/reference");
    if !folder.exists() {
        eprintln!("SKIPPED: {} does not exist", folder.display());
        return;
    }
    let backbone = Backbone::open(folder.join("mini-conv4.safetensors")).unwrap();
    let bytes = std::fs::read(folder.join("mini-conv4-vectors.safetensors")).unwrap();
    let vectors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (images, features) = (vectors.tensor("images").unwrap(), vectors.tensor("features").unwrap());
    let to = backbone.preprocessing();
    let mut inputs = Vec::new();
    for pixels in images.data().chunks_exact(84 * 84 * 3) {
        let image = DecodedImage::new(84, 84, Channels::Colour, pixels.to_vec());
        let mut input = vec![0.0; to.input_len()];
        to.normalise(&image, &mut input);
        inputs.extend(input);
    }
    let mut found = vec![0.0; inputs.len() / to.input_len() * backbone.dim()];
    backbone.session().embed(&inputs, &mut found).unwrap();
    let expected = features.data().as_chunks::<4>().0.iter().map(|&stored| f32::from_le_bytes(stored));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");
}

#[test]
fn a_folder_becomes_rows_sorted_by_class_and_name_and_other_files_are_listed() {
    let folder = folder();
    let (_, report, path) = embedded(folder.path(), None, 2);
    let read = Embeddings::open(&path).unwrap();
    assert_eq!((read.len(), read.dim(), report.images), (12, 64, 12));
    assert_eq!(report.skipped.len(), 1);
    assert!(report.skipped[0].to_string().starts_with("odd/broken.jpg: unknown image format"));
    assert_eq!(read.classes(), ["even", "odd"]);
    let names: Vec<_> = (0..12).map(|row| read.item(row).unwrap().to_string()).collect();
    assert!(names.is_sorted(), "{names:?}");
    assert!(read.backbone().unwrap().starts_with("random (conv4, "));
    assert!(!read.features().as_f32().unwrap().iter().all(|&value| value == 0.0));
}

#[test]
fn the_same_seed_gives_the_same_bytes_with_any_number_of_threads() {
    let folder = folder();
    for copies in [None, Some(3)] {
        let (one, report, _) = embedded(folder.path(), copies, 1);
        let (three, ..) = embedded(folder.path(), copies, 3);
        assert!(one == three, "copies {copies:?}");
        assert_eq!(report.rows, 12 * copies.unwrap_or(1));
    }
}

#[test]
fn copies_are_numbered_and_differ_and_do_not_depend_on_other_images() {
    let folder = folder();
    let (.., path) = embedded(folder.path(), Some(2), 2);
    let all = Embeddings::open(&path).unwrap();
    assert_eq!((all.item(0), all.item(1)), (Some("even/kind.16-bit.png#1"), Some("even/kind.16-bit.png#2")));
    let row = |read: &Embeddings, item: &str| {
        let index = (0..read.len()).find(|&row| read.item(row) == Some(item)).unwrap();
        let mut values = vec![0.0; read.dim()];
        read.features().decode_row(index, &mut values);
        values
    };
    assert_ne!(row(&all, "even/kind.16-bit.png#1"), row(&all, "even/kind.16-bit.png#2"));
    let kept = row(&all, "odd/kind.webp#1");
    std::fs::remove_dir_all(folder.path().join("even")).unwrap();
    let (.., path) = embedded(folder.path(), Some(2), 1);
    assert_eq!(row(&Embeddings::open(&path).unwrap(), "odd/kind.webp#1"), kept);
}

#[test]
fn a_class_without_readable_images_is_an_error_and_leaves_no_file() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("none")).unwrap();
    std::fs::write(folder.path().join("none/1.jpg"), b"").unwrap();
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    let embedder = Embedder::new(backbone(), &CacheLocation::Disabled);
    let request = EmbedRequest {
        collection: &collection,
        embedder: &embedder,
        copies: None,
        precision: Precision::F16,
        seed: 0,
        min_per_class: 1,
    };
    let output = folder.path().join("out.safetensors");
    let refused = embed(&request, &output, &()).unwrap_err();
    let expected = "class 'none' has 0 readable images, but 1 are needed";
    assert_eq!(refused.to_string(), expected);
    let stopped = embed(&EmbedRequest { min_per_class: 0, ..request }, &output, &|_: u64, _: u64| {
        ControlFlow::Break(())
    })
    .unwrap_err();
    assert!(matches!(stopped, Error::Core(trueshot::Error::Interrupted)));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(left.iter().all(|path| path.is_dir()), "{left:?}");
}

#[test]
fn built_in_drawings_look_as_their_published_files_do() {
    let drawings = Collection::open("omniglot", SourceOptions::default()).unwrap();
    let drawing = drawings.read_image(&drawings.entries()[0], Channels::Grey).unwrap();
    let image = image::GrayImage::from_raw(105, 105, drawing.pixels.clone()).unwrap();
    let published = crate::image_kinds::file(image, ImageFormat::Png);
    assert_eq!(DecodedImage::decode(&published, Channels::Grey).unwrap(), drawing);
    // Ink is 1 and paper 0 for the network.
    let to = Preprocessing::drawings(28);
    let mut input = vec![0.0; to.input_len()];
    to.normalise(&drawing.fitted(28, to.fit), &mut input);
    assert!(input.iter().all(|value| (-1e-6..=1.0 + 1e-6).contains(value)));
    assert!(input[0].abs() < 1e-6 && input.iter().any(|&value| value > 0.8), "{input:?}");
}

#[test]
fn tensors_that_are_not_a_backbone_are_refused_with_the_reason() {
    let problem = |change: &dyn Fn(&mut Tensors)| {
        let mut changed = tensors(3);
        change(&mut changed);
        Backbone::from_tensors(&changed, "x").map(drop).unwrap_err().to_string()
    };
    assert!(problem(&|t| t.set_note("architecture", "resnet")).contains("its architecture is 'resnet'"));
    assert!(problem(&|t| t.set_note("mean", "0.5,x,1")).contains("its metadata 'mean' is '0.5,x,1'"));
    assert!(problem(&|t| t.set_note("mean", "0.5,1")).contains("has 2 numbers"));
    assert!(problem(&|t| t.set_note("std", "0,1,1")).contains("std not 0"));
    assert!(problem(&|t| t.set_note("input_size", "8")).contains("allowed: 16 to"));
    assert!(problem(&|t| t.insert("extra", &[1], vec![0.0])).contains("'extra'"));
}

/// No test in this binary sets a worker process.
#[test]
fn an_onnx_model_is_refused_in_a_program_that_has_no_worker_process() {
    use trueshot_vision::backbone::BackboneOptions;
    use trueshot_vision::onnx::{ModelProcess, run_models_in};
    let open = || Backbone::find("tests/models/fixed.onnx", &BackboneOptions::default()).err().unwrap();
    let error = open();
    assert!(error.to_string().contains("run in a process of their own"), "{error}");
    assert!(error.hint().unwrap().contains("run_models_in"));
    run_models_in(ModelProcess::new("/nowhere/trueshot", ["onnx-worker"]));
    let error = open();
    assert!(error.to_string().contains("cannot be started"), "{error}");
    // A program that is not a worker ends with its own status.
    run_models_in(ModelProcess::new("/bin/sh", ["-c", "echo hello; echo oh no >&2; exit 7"]));
    let error = open();
    assert!(error.to_string().contains("exit status: 7") && error.to_string().contains("oh no"), "{error}");
}
