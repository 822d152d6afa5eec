//! Tests of `trueshot train backbone` and `trueshot embed`.

use std::path::Path;

use crate::fixture::{TRUESHOT, misused, refused, refused_after_reading, text};
use assert_cmd::Command;
use image::{Rgb, RgbImage};
use trueshot::Embeddings;

/// A folder with images of six classes, four of them in `train/`, two in `val/`, and a small backbone.
struct ImageFolder(tempfile::TempDir);

/// Images per class.
const PICTURES: usize = 8;

impl ImageFolder {
    fn new() -> Self {
        let folder = ImageFolder(tempfile::tempdir().unwrap());
        for class in 0..6 {
            let split = if class < 4 { "train" } else { "val" };
            let folder = folder.path().join(format!("pictures/{split}/class {class}"));
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..PICTURES {
                let shade = |place: u32| (place * (class as u32 + 3) * 17 + number as u32 * 5) as u8;
                let image = RgbImage::from_fn(18, 20, |x, y| Rgb([shade(x), shade(y), shade(x + y)]));
                image.save(folder.join(format!("{number}.png"))).unwrap();
            }
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn trueshot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TRUESHOT);
        command.current_dir(self.path()).env("XDG_CACHE_HOME", self.path().join("cache")).args(arguments);
        command
    }

    /// Trains for three steps on tiny images.
    fn train(&self, more: &[&str]) -> Command {
        let small = ["--size", "16", "--steps", "3", "--ways", "2", "--shots", "2", "--queries", "2"];
        let judged = ["--val-every", "2", "--val-episodes", "5", "--val-ways", "2", "--val-shots", "2"];
        let rest = ["--val-queries", "2", "-o", "conv4.safetensors"];
        self.trueshot(&[&["train", "backbone"], &small[..], &judged, &rest, more].concat())
    }

    fn with_backbone() -> Self {
        let folder = Self::new();
        folder.train(&["pictures/train", "--val", "pictures/val"]).assert().success();
        folder
    }

    fn embed(&self, more: &[&str]) -> Command {
        self.trueshot(&[&["embed", "--backbone", "conv4.safetensors"], more].concat())
    }

    fn read(&self, name: &str) -> Embeddings {
        Embeddings::open(self.path().join(name)).unwrap()
    }
}

#[test]
fn a_backbone_is_trained_and_embeds_a_folder() {
    let folder = ImageFolder::new();
    let trained = folder.train(&["pictures/train", "--val", "pictures/val"]).assert().success();
    let said = text(&trained.get_output().stderr);
    for part in ["32 images of 4 classes to train on", "16 images of 2 classes to validate on", "validation"]
    {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    for name in ["conv4.toml", "conv4.metrics.jsonl", "conv4.curves.svg"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
    let embedded = folder.embed(&["pictures/train", "-o", "train.safetensors"]).assert().success().stdout("");
    let said = text(&embedded.get_output().stderr);
    assert!(said.contains("32 embeddings of 64 dimensions, from 32 images of 4 classes"), "{said}");
    let read = folder.read("train.safetensors");
    assert_eq!((read.len(), read.dim(), read.classes().len()), (32, 64, 4));
    assert_eq!(read.item(0), Some("class 0/0.png"));
    assert!(read.backbone().unwrap().starts_with("conv4 (conv4, "));
}

#[test]
fn a_run_that_was_stopped_ends_in_the_same_model() {
    let folder = ImageFolder::with_backbone();
    let model = || std::fs::read(folder.path().join("conv4.safetensors")).unwrap();
    let expected = model();
    let data = ["pictures/train", "--val", "pictures/val"];
    refused_because(folder.train(&data), "conv4.safetensors already exists");
    folder.train(&[&data[..], &["--overwrite", "--threads", "1"]].concat()).assert().success();
    assert!(model() == expected, "one thread");
    let config = ["--config", "conv4.toml", "-o", "again.safetensors"];
    folder.trueshot(&[&["train", "backbone"], &config[..]].concat()).assert().success();
    assert!(std::fs::read(folder.path().join("again.safetensors")).unwrap() == expected, "from its own TOML");
}

#[test]
fn options_say_how_strongly_images_are_augmented() {
    let folder = ImageFolder::new();
    let strong = ["pictures/train", "--val", "pictures/val", "--crop-area", "0.25", "--jitter", "0.5"];
    folder.train(&strong).assert().success();
    let written = std::fs::read_to_string(folder.path().join("conv4.toml")).unwrap();
    for line in ["crop_scale = [0.25, 1.0]", "brightness = 0.5", "contrast = 0.5", "saturation = 0.5"] {
        assert!(written.contains(line), "'{line}' is missing in: {written}");
    }
}

/// Only the last lines are the error: training prints messages before it fails.
#[track_caller]
fn refused_because(mut command: Command, expected: &str) {
    let assert = command.assert().code(1);
    let message = text(&assert.get_output().stderr);
    assert!(message.contains(expected), "'{expected}' is missing in: {message}");
}

#[test]
fn augmented_copies_are_the_same_with_any_number_of_threads() {
    let folder = ImageFolder::with_backbone();
    let augmented = ["pictures/val", "--augment", "--copies", "3", "--precision", "f16"];
    for threads in ["1", "2"] {
        let output = format!("{threads}.safetensors");
        folder.embed(&[&augmented[..], &["--threads", threads, "-o", &output]].concat()).assert().success();
    }
    let bytes = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(bytes("1.safetensors") == bytes("2.safetensors"));
    let read = folder.read("1.safetensors");
    assert_eq!(read.len(), 2 * PICTURES * 3);
    assert_eq!((read.item(0), read.item(2)), (Some("class 4/0.png#1"), Some("class 4/0.png#3")));
    misused(folder.embed(&["pictures/val", "-o", "x.safetensors", "--copies", "2"]), &["--augment"]);
}

#[test]
fn splits_are_pooled_and_chosen_by_a_file() {
    let folder = ImageFolder::with_backbone();
    refused(folder.embed(&["pictures", "-o", "x.safetensors"]), &["contains train, val", "hint: ", "--pool"]);
    let splits = r#"{"train": ["class 0"], "test": ["class 5", "class 3", "class 9"], "val": ["owl"]}"#;
    std::fs::write(folder.path().join("splits.json"), splits).unwrap();
    let chosen = |split| {
        ["pictures", "--pool", "--split-file", "splits.json", "--split", split, "-o", "x.safetensors"]
    };
    let said = folder.embed(&chosen("test")).assert().success();
    let said = text(&said.get_output().stderr);
    assert!(
        said.contains("warning: 1 classes of split 'test' are missing, the first is 'class 9'"),
        "{said}"
    );
    let read = folder.read("x.safetensors");
    assert_eq!(read.classes(), ["class 3", "class 5"]);
    assert_eq!(read.item(0), Some("train/class 3/0.png"));
    refused(folder.embed(&chosen("val")), &["none of the 1 classes of split 'val'"]);
    misused(folder.embed(&chosen("trial")), &["no split 'trial'", "it has: test, train, val"]);
    let limited = ["pictures/train", "--limit-per-class", "2", "-o", "x.safetensors"];
    folder.embed(&limited).assert().success();
    assert_eq!(folder.read("x.safetensors").len(), 8);
}

#[test]
fn what_cannot_be_read_is_listed_with_the_reason_and_a_class_must_not_run_out() {
    let folder = ImageFolder::with_backbone();
    let class = folder.path().join("pictures/train/class 1");
    std::fs::write(class.join("3.png"), b"").unwrap();
    std::fs::write(class.join("notes.txt"), b"two owls").unwrap();
    let arguments = ["pictures/train", "-o", "x.safetensors", "--skipped", "skipped.txt"];
    let said = text(&folder.embed(&arguments).assert().success().get_output().stderr);
    for part in [
        "warning: 2 files were skipped:",
        "class 1/3.png: empty file",
        "notes.txt: not an image by its file extension",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    let listed = std::fs::read_to_string(folder.path().join("skipped.txt")).unwrap();
    assert_eq!(listed.lines().count(), 2);
    let before = std::fs::read(folder.path().join("x.safetensors")).unwrap();
    // The reasons are given and the list is written before the error as well.
    std::fs::remove_file(folder.path().join("skipped.txt")).unwrap();
    let strict = [&arguments[..], &["--least-per-class", "8"]].concat();
    refused_after_reading(
        folder.embed(&strict),
        &["class 'class 1' has 7 readable images, but 8 are needed", "class 1/3.png: empty file"],
    );
    assert_eq!(std::fs::read_to_string(folder.path().join("skipped.txt")).unwrap(), listed);
    assert!(std::fs::read(folder.path().join("x.safetensors")).unwrap() == before, "the old file stays");
}

#[test]
fn wrong_options_are_refused_before_any_work() {
    let folder = ImageFolder::new();
    let embed = |arguments: &[&str]| folder.trueshot(&[&["embed"], arguments].concat());
    let output = ["-o", "x.safetensors"];
    refused(
        embed(&[&["pictures", "-b", "none.safetensors"], &output[..]].concat()),
        &["cannot read none.safetensors"],
    );
    std::fs::write(folder.path().join("b.safetensors"), b"nonsense").unwrap();
    refused(
        embed(&[&["pictures", "-b", "b.safetensors"], &output[..]].concat()),
        &["not a valid safetensors file"],
    );
    refused(
        embed(&["pictures", "-b", "b.safetensors", "-o", "no/x.safetensors"]),
        &["cannot write no/x.safetensors"],
    );
    refused(folder.train(&["pictures/none"]), &["cannot read pictures/none"]);
    refused(folder.train(&["pictures"]), &["contains train, val"]);
    let small =
        folder.trueshot(&["train", "backbone", "pictures/train", "-o", "x.safetensors", "--size", "9"]);
    misused(small, &["pictures.size is 9; allowed: 16 to 1024"]);
    misused(folder.train(&["pictures/train", "--crop-area", "2"]), &["crop_scale within 0 to 1"]);
    misused(folder.train(&["pictures/train", "--jitter", "2"]), &["jitters from 0 to 1"]);
    let outliers = |more: &[&str]| {
        folder
            .train(&[&["pictures/train", "--val", "pictures/val", "--noise", "outlier=0,50"], more].concat())
    };
    let all_classes = ["train", "backbone", "pictures/train", "-o", "x.safetensors", "--ways", "4"];
    let small = ["--size", "16", "--shots", "2", "--queries", "2", "--noise", "outlier=50"];
    let failed = folder.trueshot(&[&all_classes[..], &small].concat()).assert().code(1);
    let said = text(&failed.get_output().stderr);
    assert!(
        said.contains("error: there are 0 outliers to draw from") && said.contains("hint: outliers are"),
        "{said}"
    );
    std::fs::create_dir_all(folder.path().join("others")).unwrap();
    std::fs::rename(folder.path().join("pictures/val/class 5"), folder.path().join("others/class 3"))
        .unwrap();
    refused(
        outliers(&["--outliers", "others", "--val-outliers", "others"]),
        &["class 'class 3' is both in the outliers and in the data", "hint: remove it from others"],
    );
    refused(
        outliers(&["--val-outliers", "pictures/val"]),
        &[
            "class 'class 4' is both in the outliers and in the data",
            "hint: take outliers from other images than pictures/val",
        ],
    );
    misused(
        folder.trueshot(&[
            "train",
            "negmargin",
            "pictures/train",
            "-o",
            "x.safetensors",
            "--outliers",
            "others",
        ]),
        &["data.outliers is others; allowed: none, because batches of NegMargin have no noise"],
    );
}

#[test]
fn a_backbone_is_trained_with_outliers_and_its_configuration_names_them() {
    let folder = ImageFolder::new();
    let arguments = ["pictures/train", "--val", "pictures/val", "--noise", "outlier=0,50"];
    let outliers = ["--outliers", "pictures/val", "--val-outliers", "pictures/train"];
    let said =
        text(&folder.train(&[&arguments[..], &outliers].concat()).assert().success().get_output().stderr);
    for part in ["16 images of 2 classes as outliers\n", "as outliers for validation", "outlier 50 %"] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    let written = std::fs::read_to_string(folder.path().join("conv4.toml")).unwrap();
    assert!(written.contains("outliers = \"pictures/val\""), "{written}");
    let first = std::fs::read(folder.path().join("conv4.safetensors")).unwrap();
    folder.train(&["--config", "conv4.toml", "--overwrite", "--threads", "1"]).assert().success();
    assert!(std::fs::read(folder.path().join("conv4.safetensors")).unwrap() == first, "the same model");
    let own =
        ["--overwrite", "--outliers", "./pictures/train", "--val-outliers", "pictures/../pictures/train"];
    let own = folder.train(&[&arguments[..], &own].concat()).assert().success();
    let said = text(&own.get_output().stderr);
    assert!(!said.contains("as outliers\n"), "training images are outliers: {said}");
    assert!(said.contains("images of 4 classes as outliers for validation"), "{said}");
}

#[test]
fn classes_and_pictures_that_training_shares_with_validation_are_warned_of() {
    let folder = ImageFolder::new();
    let said = folder.train(&["pictures/train", "--val", "pictures/train"]).assert().success();
    let said = text(&said.get_output().stderr);
    for part in ["4 classes are in both training and validation", "nearly the same as a training image"] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
}

#[test]
fn the_support_set_of_an_episode_is_drawn_with_frames() {
    let folder = ImageFolder::new();
    let small = ["--ways", "2", "--shots", "2", "--queries", "2", "-o", "set.svg"];
    let episode =
        |more: &[&str]| folder.trueshot(&[&["episode", "pictures/train"], &small[..], more].concat());
    let outliers = ["--noise", "outlier=50", "--outliers", "pictures/val"];
    let said = text(&episode(&outliers).assert().success().stdout("").get_output().stderr);
    assert!(
        said.contains("outlier noise of 50 %") && said.contains("1 of 2 wrong, true class class"),
        "{said}"
    );
    let svg = std::fs::read_to_string(folder.path().join("set.svg")).unwrap();
    assert_eq!(svg.matches("data:image/jpeg;base64,").count(), 4, "{svg}");
    assert_eq!(svg.matches("wrong label, true class class").count(), 2, "{svg}");
    episode(&[&outliers[..], &["--threads", "1"]].concat()).assert().success();
    assert_eq!(std::fs::read_to_string(folder.path().join("set.svg")).unwrap(), svg, "always the same");
    refused(episode(&["--noise", "symmetric=0,50"]), &["--noise has 2 levels, but an episode has one"]);
    episode(&["--noise", "outlier=50"]).assert().success();
    let svg = std::fs::read_to_string(folder.path().join("set.svg")).unwrap();
    episode(&["--noise", "outlier=50", "--outliers", "./pictures/train"]).assert().success();
    let same = std::fs::read_to_string(folder.path().join("set.svg")).unwrap();
    assert!(same == svg, "the data itself as outliers means the default");
    std::fs::create_dir_all(folder.path().join("shared")).unwrap();
    std::fs::rename(folder.path().join("pictures/val/class 5"), folder.path().join("shared/class 3"))
        .unwrap();
    refused(
        episode(&["--noise", "outlier=50", "--outliers", "shared"]),
        &["class 'class 3' is both in the outliers and in the data", "hint: remove it from shared"],
    );
    assert_eq!(svg.matches("wrong label, true class class").count(), 2, "of other training classes: {svg}");
    let all_classes =
        ["episode", "pictures/train", "--ways", "4", "--shots", "2", "--queries", "2", "-o", "all.svg"];
    refused(
        folder.trueshot(&[&all_classes[..], &["--noise", "outlier=50"]].concat()),
        &["there are 0 outliers to draw from"],
    );
    std::fs::write(folder.path().join("pictures/train/class 0/0.png"), b"no picture").unwrap();
    let broken: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    let all = broken.iter().map(|number| episode(&["--noise", "symmetric=0", "--episode", number]));
    let failed = all.map(|mut command| command.output().unwrap()).filter(|done| !done.status.success());
    let told: Vec<String> = failed.map(|done| text(&done.stderr)).collect();
    assert!(
        !told.is_empty() && told.iter().all(|told| told.contains("class 0/0.png cannot be shown")),
        "{told:?}"
    );
}

#[test]
fn photographs_need_no_backbone_and_the_second_time_no_network() {
    let folder = ImageFolder::new();
    let embed = |output: &str, more: &[&str]| {
        let arguments = ["embed", "pictures/val", "-o", output, "--size", "32"];
        let done = folder.trueshot(&[&arguments[..], more].concat()).assert().success();
        (text(&done.get_output().stderr), std::fs::read(folder.path().join(output)).unwrap())
    };
    let (said, first) = embed("first.safetensors", &[]);
    assert!(said.contains("16 embeddings of 1280 dimensions") && !said.contains("from the cache"), "{said}");
    let (said, second) = embed("second.safetensors", &["--threads", "1"]);
    assert!(said.contains("16 from the cache"), "{said}");
    assert_eq!(first, second);
    let (said, third) = embed("third.safetensors", &["--no-cache"]);
    assert!(!said.contains("known"), "{said}");
    assert_eq!(first, third);
    let (said, _) = embed("fourth.safetensors", &["--cache", "elsewhere"]);
    assert!(!said.contains("known") && folder.path().join("elsewhere").is_dir(), "{said}");
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (said, fifth) = embed("fifth.safetensors", &["--cache", "file"]);
    assert!(said.contains("warning: the embeddings could not be cached"), "{said}");
    assert_eq!(first, fifth);
    let name = folder.read("first.safetensors").backbone().unwrap().to_owned();
    assert!(name.starts_with("efficientnet-lite0 (efficientnet-lite0, 32 px, "), "{name}");
}

#[test]
fn a_backbone_that_is_none_is_refused_with_what_there_is() {
    let folder = ImageFolder::new();
    std::fs::write(folder.path().join("model.onnx"), "not a model").unwrap();
    let embed =
        |more: &[&str]| folder.trueshot(&[&["embed", "pictures/val", "-o", "x.safetensors"], more].concat());
    refused(
        embed(&["--backbone", "model.onnx"]),
        &["model.onnx cannot be used as a backbone", "not an ONNX file"],
    );
    refused(embed(&["--backbone", "resnet"]), &["no such file", "efficientnet-lite0", "hint: "]);
    misused(embed(&["--size", "7"]), &["the image size is 7", "32 to 1024"]);
    misused(embed(&["--mean", "0,0,0"]), &["ONNX models only"]);
    misused(embed(&["--cache", "c", "--no-cache"]), &["--no-cache"]);
}

#[test]
#[cfg(target_os = "linux")]
fn large_pictures_on_many_threads_share_one_budget_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    // 36 megapixels with transparency in a few kilobytes, which take 144 MB when decoded.
    let mut large = std::io::Cursor::new(Vec::new());
    image::RgbaImage::new(6000, 6000).write_to(&mut large, image::ImageFormat::Png).unwrap();
    for (class, number) in (0..8).map(|number| (number % 2, number)) {
        let class = folder.path().join(format!("pictures/{class}"));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{number}.png")), large.get_ref()).unwrap();
    }
    let mut child = std::process::Command::new(TRUESHOT)
        .args([
            "embed",
            "pictures",
            "-o",
            "out.safetensors",
            "--backbone",
            "omniglot-conv4",
            "--threads",
            "8",
        ])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    // The peak memory is in the status file of a process, which is gone when it has ended.
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        peak = peak.max(kilobytes.unwrap_or(0) / 1024);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    assert!((100..700).contains(&peak), "{peak} MiB; 512 MiB are for pictures");
}

#[test]
fn a_gpu_that_does_not_exist_or_cannot_embed_this_is_refused() {
    let folder = ImageFolder::with_backbone();
    let all = ["pictures/val", "-o", "x.safetensors"];
    let with = |more: &[&'static str]| folder.embed(&[&all[..], more].concat());
    misused(with(&["--device", "gpu"]), &["'gpu' is not a device; allowed: auto, cpu, cuda, cuda:N"]);
    let expected = ["CUDA", "hint: use the CPU with --device cpu, or let --device auto choose"];
    refused(with(&["--device", "cuda:77"]), &expected);
    let expected = ["augmented copies are embedded on the CPU", "hint: leave out --device"];
    refused(with(&["--device", "cuda", "--augment"]), &expected);
    let built_in = ["embed", "pictures/val", "-o", "x.safetensors", "--device", "cuda:77"];
    let expected = ["CUDA", "hint: use the CPU with --device cpu, or let --device auto choose"];
    refused(folder.trueshot(&built_in), &expected);
    with(&["--device", "cpu"]).assert().success();
}
