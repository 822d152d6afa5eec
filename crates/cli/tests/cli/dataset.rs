//! Tests of `trueshot dataset`, and of published data sets on the command line.

use std::path::{Path, PathBuf};

use crate::fixture::{TRUESHOT, misused, refused, text};
use assert_cmd::Command;
use image::{Rgb, RgbImage};

struct TestFolder(tempfile::TempDir);

impl TestFolder {
    fn new() -> Self {
        TestFolder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn trueshot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TRUESHOT);
        command.current_dir(self.0.path()).args(arguments);
        command
    }

    /// Class folders of small images with various aspect ratios.
    fn imagenet(classes: &[&str], pictures: u32) -> Self {
        let place = TestFolder::new();
        for (number, class) in classes.iter().enumerate() {
            let folder = place.path("imagenet/train").join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for picture in 0..pictures {
                let colour = Rgb([number as u8, picture as u8, 7]);
                let image = RgbImage::from_pixel(20 + picture, 30, colour);
                image.save(folder.join(format!("{class}_{picture}.JPEG.png"))).unwrap();
            }
        }
        place
    }

    fn outliers(&self, more: &[&str]) -> Command {
        self.trueshot(&[&["dataset", "outliers", "imagenet", "--imagenet", "-o", "out"], more].concat())
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The path of a small data set in a published form, from the tests of `trueshot-vision`.
fn published(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vision/tests/published");
    folder.join(name).display().to_string()
}

/// Five of the paper's outlier classes, and one of miniImageNet.
const CLASSES: [&str; 6] = ["n01514668", "n01514859", "n01518878", "n01608432", "n01614925", "n01532829"];
/// Options for few and small outliers.
const SMALL: [&str; 6] = ["--classes-count", "5", "--per-class", "4", "--size", "16"];

#[test]
fn outliers_are_taken_resized_and_halved_and_the_seed_decides() {
    let place = TestFolder::imagenet(&CLASSES, 6);
    let said = text(&place.outliers(&SMALL).assert().success().stdout("").get_output().stderr);
    assert!(said.contains("out: 3 classes in train, 2 in test, 20 images written"), "{said}");
    assert_eq!(place.names("out"), ["outliers.json", "test", "train"]);
    assert_eq!(place.names("out/train"), ["n01514668", "n01518878", "n01614925"]);
    assert_eq!(place.names("out/test"), ["n01514859", "n01608432"]);
    let taken = place.names("out/test/n01514859");
    assert_eq!(taken.len(), 4);
    let picture = image::open(place.path("out/test/n01514859").join(&taken[0])).unwrap();
    assert_eq!((picture.width(), picture.height()), (16, 16));
    let all = |place: &TestFolder| {
        CLASSES[..5]
            .iter()
            .flat_map(|class| {
                let half = if place.path("out/train").join(class).exists() { "train" } else { "test" };
                place.names(&format!("out/{half}/{class}"))
            })
            .collect::<Vec<_>>()
    };
    let (again, other) = (TestFolder::imagenet(&CLASSES, 6), TestFolder::imagenet(&CLASSES, 6));
    again.outliers(&[&SMALL[..], &["--threads", "1"]].concat()).assert().success();
    other.outliers(&[&SMALL[..], &["--seed", "1"]].concat()).assert().success();
    assert_eq!(all(&place), all(&again));
    assert_ne!(all(&place), all(&other));
}

#[test]
fn all_classes_of_a_list_are_taken_unless_a_count_is_given() {
    let place = TestFolder::imagenet(&CLASSES, 4);
    std::fs::write(place.path("list.txt"), "n01514859\nn01518878\n\nn01514668\nn01514668\n").unwrap();
    let small = ["--classes", "list.txt", "--per-class", "2", "--size", "16"];
    let said = text(&place.outliers(&small).assert().success().get_output().stderr);
    assert!(said.contains("out: 2 classes in train, 1 in test, 6 images written"), "{said}");
}

#[test]
fn outliers_of_the_same_source_are_the_images_of_the_validation_classes() {
    let place = TestFolder::new();
    for (class, colour) in [("train/ant", 1), ("val/bee", 2), ("val/cat", 3), ("test/dog", 4)] {
        std::fs::create_dir_all(place.path("mini").join(class)).unwrap();
        for number in 0..3 {
            let image = RgbImage::from_pixel(20 + number, 30, Rgb([colour, number as u8, 7]));
            image.save(place.path("mini").join(class).join(format!("{number}.png"))).unwrap();
        }
    }
    let outliers = |more: &[&str]| place.trueshot(&[&["dataset", "outliers", "mini", "-o"], more].concat());
    let said = text(&outliers(&["out"]).assert().success().stdout("").get_output().stderr);
    assert!(said.contains("out: 0 classes in train, 2 in test, 6 images written"), "{said}");
    assert_eq!(place.names("out"), ["outliers.json", "test"]);
    assert_eq!(place.names("out/test/bee"), ["00000-0.png", "00001-1.png", "00002-2.png"]);
    let written = image::open(place.path("out/test/bee/00002-2.png")).unwrap().to_rgb8();
    assert_eq!((written.dimensions(), written.get_pixel(0, 0).0), ((22, 30), [2, 2, 7]));
    let said = text(&outliers(&["few", "--per-class", "2"]).assert().success().get_output().stderr);
    assert!(said.contains("4 images written"), "{said}");
    misused(outliers(&["x", "--classes-count", "3"]), &["--imagenet"]);
    let said = text(&outliers(&["out"]).assert().success().get_output().stderr);
    assert!(said.contains("0 images written; 2 classes already existed"), "{said}");
    std::fs::remove_dir_all(place.path("mini/val")).unwrap();
    refused(outliers(&["none"]), &["val", "--imagenet"]);
}

#[test]
fn work_that_was_stopped_goes_on_and_other_work_is_refused() {
    let place = TestFolder::imagenet(&CLASSES, 6);
    place.outliers(&SMALL).assert().success();
    std::fs::remove_dir_all(place.path("out/train/n01518878")).unwrap();
    std::fs::create_dir(place.path("out/train/.n01518878.part")).unwrap();
    let said = text(&place.outliers(&SMALL).assert().success().get_output().stderr);
    assert!(said.contains("4 images written; 4 classes already existed"), "{said}");
    assert_eq!(place.names("out/train"), ["n01514668", "n01518878", "n01614925"]);
    refused(
        place.outliers(&[&SMALL[..], &["--seed", "9"]].concat()),
        &["cannot write to out: it was started with other options", "hint: give a new folder"],
    );
    refused(
        place.outliers(&[&SMALL[..], &["--fit", "crop"]].concat()),
        &["cannot write to out: it was started with other options"],
    );
    std::fs::create_dir(place.path("used")).unwrap();
    std::fs::write(place.path("used/notes.txt"), "mine").unwrap();
    let mut command = place.trueshot(&["dataset", "outliers", "imagenet", "--imagenet", "-o", "used"]);
    command.args(SMALL);
    refused(command, &["cannot write to used: it is not empty"]);
}

#[test]
fn classes_that_run_short_and_pictures_that_cannot_be_read_are_counted() {
    let place = TestFolder::imagenet(&CLASSES, 6);
    let folder = place.path("imagenet/train/n01518878");
    for name in place.names("imagenet/train/n01518878").iter().take(3) {
        std::fs::write(folder.join(name), "no picture").unwrap();
    }
    let said = text(&place.outliers(&SMALL).assert().success().get_output().stderr);
    for part in
        ["1 of 5 classes have too few images; 'n01518878' has the fewest, 3", "3 images could not be read"]
    {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
}

#[test]
fn outliers_that_are_in_a_split_or_not_there_are_refused() {
    let place = TestFolder::imagenet(&CLASSES, 4);
    std::fs::write(place.path("list.txt"), "n01514668\n\nn01532829\n").unwrap();
    refused(
        place.outliers(&["--classes", "list.txt", "--classes-count", "2"]),
        &["class 'n01532829' is listed as an outlier but is in split 'train' of miniimagenet", "hint: "],
    );
    refused(
        place.outliers(&["--per-class", "4"]),
        &["has 5 of the 350 classes that may be outliers, but 350 are needed", "--classes-count 5"],
    );
    refused(
        place.trueshot(&["dataset", "outliers", "none", "--imagenet", "-o", "out"]),
        &["cannot read none"],
    );
    let none = ["no validation classes to take outliers from", "none has no splits"];
    refused(place.trueshot(&["dataset", "outliers", "none", "-o", "out"]), &none);
    std::fs::create_dir_all(place.path("empty/val")).unwrap();
    let said = place.trueshot(&["dataset", "outliers", "empty", "-o", "out"]).assert().code(1);
    let said = text(&said.get_output().stderr);
    assert!(said.contains("no images in") && !said.contains("no validation classes"), "{said}");
    misused(place.outliers(&["--exclude", "imagenette"]), &["no built-in split has that name"]);
    misused(place.outliers(&["--classes-count", "1"]), &["--classes-count"]);
    // All folders that are not in the split.
    std::fs::write(place.path("splits.json"), r#"{"train": ["n01514668"], "test": ["n01532829"]}"#).unwrap();
    let drawn = ["--exclude", "splits.json", "--classes-count", "4", "--per-class", "2", "--size", "8"];
    place.outliers(&drawn).assert().success();
    let classes = [place.names("out/train"), place.names("out/test")].concat();
    assert!(classes.len() == 4 && !classes.contains(&"n01514668".to_string()), "{classes:?}");
}

#[test]
fn a_check_lists_images_that_cannot_be_read() {
    let place = TestFolder::new();
    std::fs::create_dir_all(place.path("photos/ant")).unwrap();
    RgbImage::new(4, 4).save(place.path("photos/ant/1.png")).unwrap();
    std::fs::write(place.path("photos/ant/broken.png"), "no picture").unwrap();
    let output = place.trueshot(&["dataset", "check", "photos"]).assert().success().get_output().clone();
    let said = text(&output.stderr);
    assert!(said.contains("1 file was skipped") && said.contains("ant/broken.png: "), "{said}");
}

#[test]
fn a_check_says_what_there_is_and_what_differs_from_what_was_published() {
    let place = TestFolder::new();
    let check = |arguments: &[&str]| place.trueshot(&[&["dataset", "check"], arguments].concat());
    let said = text(&check(&[&published("mini-4")]).assert().success().get_output().stdout);
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["train", "3", "6", "2", "5", "x", "4"]);
    assert_eq!(lines[3], ["test", "1", "2", "2", "5", "x", "4"]);
    let output = check(&[&published("mini-4"), "--expect", "mini"]).assert().code(3).get_output().clone();
    let said = text(&output.stdout);
    for part in [
        "! train: 3 classes instead of 64",
        "! train: 3 classes without exactly 600 images: n01 (2), n02 (2), n03 (2)",
        "! val: 2 images are not 84 x 84 px",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    assert!(text(&output.stderr).contains("problems found"));
    // A folder with the name of a built-in split is not used as a split file.
    std::fs::create_dir(place.path("fc100")).unwrap();
    let output =
        check(&[&published("cifar-100-python"), "--expect", "fc100"]).assert().code(3).get_output().clone();
    let said = text(&output.stdout);
    for part in ["! train: 2 classes instead of 60", "! train: 58 classes missing", "! test: 1 classes"] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    misused(
        check(&["x", "--expect", "imagenette"]),
        &["possible values: mini, tiered, cifar-fs, fc100, cub"],
    );
    refused(check(&["none"]), &["cannot read none"]);
}

#[test]
fn published_data_sets_are_embedded_and_trained_on_by_split() {
    let place = TestFolder::imagenet(&CLASSES[..3], 4);
    let train = |data: &str| {
        let small = ["--size", "16", "--steps", "1", "--ways", "2", "--shots", "1", "--queries", "1"];
        let rest = ["--val-split", "", "-o", "b.safetensors"];
        place.trueshot(&[&["train", "backbone", data], &small[..], &rest].concat())
    };
    train("imagenet/train").assert().success();
    // The training split is found; two images per class are too few to train on.
    let said = text(&train(&published("mini-4")).arg("--overwrite").assert().code(1).get_output().stderr);
    for part in ["6 images of 3 classes to train on", "class 'n01' has 2 items"] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    let embed = |arguments: &[&str]| {
        place.trueshot(&[&["embed", "-b", "b.safetensors", "-o", "x.safetensors"], arguments].concat())
    };
    embed(&[&published("mini-4"), "--split", "test"]).assert().success();
    let read = trueshot::Embeddings::open(place.path("x.safetensors")).unwrap();
    assert_eq!((read.classes(), read.item(0)), (&["n05".to_string()][..], Some("n05/0")));
    embed(&[&published("cifar-100-python"), "--split-file", "cifar-fs", "--split", "train"])
        .assert()
        .success();
    refused(embed(&[&published("mini-4")]), &["contains train, val, test", "--split"]);
    refused(
        embed(&[&published("cifar-100-python"), "--split", "test"]),
        &["has no splits, so split 'test' is unknown", "--split-file"],
    );
    misused(embed(&[&published("mini-0"), "--split", "val"]), &["no split 'val'", "it has: train"]);
    std::fs::write(place.path("evil.pkl"), b"cos\nsystem\n(S'touch called'\ntR.").unwrap();
    refused(embed(&["evil.pkl"]), &["evil.pkl is not a readable pickle: it calls os.system"]);
    assert!(!place.path("called").exists());
}
