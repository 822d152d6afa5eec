//! Tests of `trueshot fit` and `trueshot predict`.

use std::path::Path;

use crate::fixture::{EmbeddingsFolder, TRUESHOT, misused, refused, text};
use assert_cmd::Command;
use image::{Rgb, RgbImage};

/// A folder of three classes of coloured stripes, five images each.
struct StripesFolder(tempfile::TempDir);

impl StripesFolder {
    fn new() -> Self {
        let photos = StripesFolder(tempfile::tempdir().unwrap());
        for (class, colour) in [("red", [220, 30, 30]), ("green", [30, 200, 40]), ("blue", [30, 40, 220])] {
            for number in 0..5 {
                photos.add(&format!("photos/{class}/{number}.png"), colour, number);
            }
        }
        photos
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn add(&self, name: &str, [r, g, b]: [u8; 3], number: u32) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let stripe = |x: u32, value: u8| if (x + number) % (4 + number) < 2 { value / 2 } else { value };
        let image = RgbImage::from_fn(40, 36, |x, y| Rgb([stripe(x, r), stripe(y, g), stripe(x + y, b)]));
        image.save(path).unwrap();
    }

    fn trueshot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TRUESHOT);
        command.current_dir(self.path()).env("XDG_CACHE_HOME", self.path().join("cache")).args(arguments);
        command
    }

    fn fit(&self, more: &[&str]) -> String {
        let arguments = [&["fit", "photos", "-o", "colours.safetensors", "--size", "64"], more].concat();
        text(&self.trueshot(&arguments).assert().success().get_output().stderr)
    }

    /// Predicts without `--size`, because the classifier names the size of its images.
    fn predict(&self, more: &[&str]) -> Command {
        self.trueshot(&[&["predict", "colours.safetensors"], more].concat())
    }

    fn answers(&self, more: &[&str]) -> String {
        text(&self.predict(more).assert().success().get_output().stdout)
    }
}

#[test]
fn photos_become_a_classifier_that_answers_for_new_ones() {
    let photos = StripesFolder::new();
    let said = photos.fit(&[]);
    assert!(said.contains("colours.safetensors: 3 classes from 15 examples by relabel"), "{said}");
    photos.add("new/a.png", [210, 35, 25], 7);
    photos.add("new/b.png", [25, 35, 210], 6);
    let table = photos.answers(&["new/a.png"]);
    assert!(table.contains(" %  red ") && table.trim_end().ends_with("new/a.png"), "{table}");
    let csv = photos.answers(&["new", "--format", "csv", "--all"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "item,class,probability,unknown,answer,blue,green,red");
    assert!(lines[1].contains("a.png,red,") && lines[2].contains("b.png,blue,"), "{csv}");
    for line in &lines[1..] {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells[4], cells[1], "the answer is the class: {line}");
        let numbers = cells[3..].iter().filter_map(|number| number.parse::<f64>().ok());
        assert!((numbers.sum::<f64>() - 1.0).abs() < 1e-3, "the classes and none: {line}");
    }
    assert_eq!(photos.answers(&["new", "--format", "csv", "--all", "--threads", "1"]), csv);
    let line = photos.answers(&["new/b.png", "--format", "jsonl"]);
    let answer: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    assert_eq!((&answer["item"], &answer["class"]), (&"new/b.png".into(), &"blue".into()));
    assert_eq!(answer["answer"], "blue");
    let table = photos.answers(&["new/b.png", "--all"]);
    assert!(table.contains("none of these") && table.contains("red "), "further answers: {table}");
}

#[test]
fn what_belongs_to_no_class_has_no_answer_in_any_format() {
    let photos = StripesFolder::new();
    photos.fit(&[]);
    photos.add("new/b.png", [25, 35, 210], 6);
    let always = ["new/b.png", "--unknown", "0"];
    let csv = photos.answers(&[&always[..], &["--format", "csv"]].concat());
    let cells: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    assert_eq!((cells[1], cells[4]), ("blue", ""), "{csv}");
    let line = photos.answers(&[&always[..], &["--format", "jsonl"]].concat());
    let answer: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    assert!(answer["answer"].is_null(), "{line}");
    assert!(photos.answers(&always).contains("none of these"));
    for unknown in ["50", "nan", "-0.1", "101%"] {
        let unknown = format!("--unknown={unknown}");
        misused(photos.predict(&["new/b.png", &unknown]), &["expected a number from 0 to 1, or 0% to 100%"]);
    }
}

#[test]
fn predict_never_writes_over_what_it_reads_or_before_an_input_is_read() {
    let photos = StripesFolder::new();
    photos.fit(&[]);
    let read = |name: &str| std::fs::read(photos.path().join(name)).unwrap();
    for (name, why) in
        [("colours.safetensors", "is read by this command"), ("photos/red/0.png", "is an image")]
    {
        let before = read(name);
        let expected = format!("./{name} {why}: write to another file");
        refused(photos.predict(&["photos/red/0.png", "-o", &format!("./{name}")]), &[expected.as_str()]);
        assert!(read(name) == before, "{name}");
    }
    std::fs::write(photos.path().join("answers.csv"), "earlier").unwrap();
    std::fs::write(photos.path().join("list.csv"), "nothing\n").unwrap();
    photos.predict(&["list.csv", "-o", "answers.csv"]).assert().code(1);
    assert_eq!(read("answers.csv"), b"earlier");
    photos.predict(&["photos/red/0.png", "-o", "answers.csv", "--format", "csv"]).assert().success();
    assert!(String::from_utf8(read("answers.csv")).unwrap().contains("photos/red/0.png,red,"));
}

#[test]
fn images_to_classify_need_no_labels() {
    let photos = StripesFolder::new();
    photos.fit(&[]);
    photos.add("new/a.png", [210, 35, 25], 7);
    photos.add("folder.zip/b.png", [25, 35, 210], 6);
    std::fs::write(photos.path().join("list.csv"), "path\nnew/a.png\n").unwrap();
    std::fs::write(photos.path().join("list.jsonl"), "{\"path\": \"new/a.png\"}\n").unwrap();
    for (input, class) in [("list.csv", " red "), ("list.jsonl", " red "), ("folder.zip", " blue ")] {
        let table = photos.answers(&[input]);
        assert!(table.contains(class) && table.lines().count() == 1, "{input}: {table}");
    }
    refused(photos.trueshot(&["fit", "list.csv", "-o", "x.safetensors"]), &["names no label column"]);
}

#[test]
fn examples_are_added_with_the_backbone_of_the_classifier() {
    let photos = StripesFolder::new();
    let fit = ["fit", "photos", "-o", "c.safetensors", "-b", "omniglot-conv4"];
    photos.trueshot(&fit).assert().success();
    (0..3).for_each(|number| photos.add(&format!("more/yellow/{number}.png"), [230, 220, 20], number));
    let add = ["fit", "more", "--add", "c.safetensors", "-o", "c.safetensors"];
    let said = text(&photos.trueshot(&add).assert().success().get_output().stderr);
    assert!(said.contains("4 classes from 18 examples"), "{said}");
    let other = [&add[..], &["-b", "efficientnet-lite0"]].concat();
    refused(photos.trueshot(&other), &["but the backbone is efficientnet-lite0", "hint: ", "--backbone"]);
    for command in ["predict", "export"] {
        let help = text(&photos.trueshot(&[command, "--help"]).assert().success().get_output().stdout);
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("[default: the one that the classifier names]"), "{help}");
        assert!(!words.contains("omniglot-conv4 for omniglot"), "{help}");
    }
}

#[test]
fn confirmed_labels_are_not_doubted_by_fit() {
    let photos = StripesFolder::new();
    std::fs::rename(photos.path().join("photos/red/0.png"), photos.path().join("photos/blue/red.png"))
        .unwrap();
    let said = photos.fit(&[]);
    assert!(said.contains("suspect; see `trueshot audit photos --size 64`"), "{said}");
    let confirm = ["audit", "photos", "--size", "64", "--confirm", "blue/red.png"];
    photos.trueshot(&confirm).assert().success();
    assert!(!photos.fit(&[]).contains("suspect"));
    (0..3).for_each(|number| photos.add(&format!("more/yellow/{number}.png"), [230, 220, 20], number));
    (0..3).for_each(|number| photos.add(&format!("more/white/{number}.png"), [240, 240, 240], number));
    photos.trueshot(&["audit", "more", "--size", "64", "--confirm", "white/0.png"]).assert().success();
    let add = ["fit", "more", "--add", "colours.safetensors", "-o", "all.safetensors", "--size", "64"];
    let said = text(&photos.trueshot(&add).assert().success().get_output().stderr);
    assert!(said.contains("5 classes from 21 examples") && !said.contains("see `trueshot audit"), "{said}");
}

#[test]
fn options_that_do_not_apply_to_the_data_are_refused() {
    let folder = EmbeddingsFolder::new();
    folder.trueshot(&["fit", "data.safetensors", "-o", "c.safetensors"]).assert().success();
    let commands: [&[&str]; 3] = [
        &["audit", "data.safetensors"],
        &["fit", "data.safetensors", "-o", "d.safetensors"],
        &["predict", "c.safetensors", "data.safetensors"],
    ];
    for command in commands {
        let with = |more: &[&str]| folder.trueshot(&[command, more].concat());
        refused(
            with(&["--size", "64"]),
            &["--size applies to images, but data.safetensors contains embeddings"],
        );
        refused(with(&["--device", "cuda"]), &["contains embeddings", "hint: leave out --device"]);
        with(&["--device", "cpu"]).assert().success();
    }
    let photos = StripesFolder::new();
    let labels = ["audit", "photos", "--labels-of-rows", "y.npy"];
    refused(
        photos.trueshot(&labels),
        &["--labels-of-rows applies to embeddings, but photos contains images"],
    );
    for command in [["fit", "photos"], ["embed", "photos"]] {
        let command = photos.trueshot(&[&command[..], &["-o", "photos.npz"]].concat());
        misused(command, &["the file must end in .safetensors"]);
    }
}

#[test]
fn an_image_in_place_of_the_classifier_is_told() {
    let photos = StripesFolder::new();
    photos.fit(&[]);
    photos.add("b.png", [25, 35, 210], 6);
    let told = text(
        &photos.trueshot(&["predict", "b.png", "colours.safetensors"]).assert().code(1).get_output().stderr,
    );
    assert!(told.contains("b.png is an image, not a classifier"), "{told}");
    assert!(told.contains("hint: give the classifier first, then the images"), "{told}");
}

#[test]
fn more_examples_and_new_classes_are_added() {
    let photos = StripesFolder::new();
    photos.fit(&["-m", "median"]);
    (0..4).for_each(|number| photos.add(&format!("more/yellow/{number}.png"), [230, 220, 20], number));
    photos.add("more/red/9.png", [200, 20, 40], 9);
    let add = ["fit", "more", "--add", "colours.safetensors", "-o", "colours.safetensors", "--size", "64"];
    let said = text(&photos.trueshot(&add).assert().success().get_output().stderr);
    assert!(said.contains("4 classes from 20 examples by relabel"), "{said}");
    photos.add("new.png", [225, 215, 30], 8);
    assert!(photos.answers(&["new.png"]).contains("yellow"));
}

#[test]
fn what_cannot_be_used_is_refused_and_what_cannot_be_read_is_skipped() {
    let photos = StripesFolder::new();
    photos.fit(&[]);
    std::fs::write(photos.path().join("photos/red/broken.png"), "no picture").unwrap();
    let done = photos.predict(&["photos"]).assert().success();
    assert!(text(&done.get_output().stderr).contains("broken.png is skipped"));
    assert_eq!(text(&done.get_output().stdout).lines().count(), 15);
    let done = photos.predict(&["photos/red/broken.png"]).assert().code(1);
    assert!(text(&done.get_output().stderr).contains("none of the images could be read"));
    refused(photos.predict(&["nowhere.png"]), &["nowhere.png does not exist"]);
    let other = ["predict", "photos/red/0.png", "photos/red/0.png"];
    refused(photos.trueshot(&other), &["cannot use photos/red/0.png as a classifier"]);
    let size = ["predict", "colours.safetensors", "photos", "--size", "96"];
    refused(
        photos.trueshot(&size),
        &["the classifier was trained on embeddings of", "64 px", "96 px", "hint: "],
    );
    std::fs::create_dir_all(photos.path().join("one/class")).unwrap();
    photos.add("one/class/a.png", [1, 2, 3], 1);
    photos.add("one/class/b.png", [9, 2, 3], 2);
    refused(photos.trueshot(&["fit", "one", "-o", "x.safetensors"]), &["at least two classes"]);
    let transductive = ["fit", "photos", "-m", "tim:steps=9", "-o", "x.safetensors"];
    let expected =
        ["method 'tim:steps=9' is transductive", "hint: use --method relabel, simpleshot or protonet"];
    refused(photos.trueshot(&transductive), &expected);
    let done = photos.trueshot(&["fit", "photos", "-m", "medain", "-o", "x.safetensors"]).assert().code(2);
    assert!(text(&done.get_output().stderr).contains("unknown method 'medain'"));
}

#[test]
fn every_command_that_embeds_takes_a_device_and_refuses_a_gpu_that_does_not_exist() {
    let photos = StripesFolder::new();
    let fit = ["fit", "photos", "-o", "c.safetensors", "--size", "32", "--device", "cpu"];
    photos.trueshot(&fit).assert().success();
    let commands: [&[&str]; 4] = [
        &["audit", "photos"],
        &["fit", "photos", "-o", "d.safetensors"],
        &["predict", "c.safetensors", "photos"],
        &["serve", "--port", "0", "--data-dir", "store"],
    ];
    for command in commands {
        let expected = ["CUDA", "hint: use the CPU with --device cpu, or let --device auto choose"];
        refused(photos.trueshot(&[command, &["--device", "cuda:77"]].concat()), &expected);
    }
    for command in &commands[..3] {
        photos.trueshot(&[command, &["--device", "cpu", "--size", "32"][..]].concat()).assert().success();
    }
}

#[test]
fn an_input_unlike_the_classes_is_none_of_these() {
    let photos = StripesFolder::new();
    photos.fit(&[]);
    let noise =
        |x: u32, y: u32| (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)).wrapping_mul(97) as u8;
    let image = RgbImage::from_fn(40, 36, |x, y| Rgb([noise(x, y), noise(y, x), noise(x + y, 7)]));
    image.save(photos.path().join("noise.png")).unwrap();
    let table = photos.answers(&["noise.png"]);
    assert!(table.contains(" %  none of these ") && table.contains("noise.png (most similar: "), "{table}");
    let table = photos.answers(&["noise.png", "--unknown", "100%"]);
    assert!(!table.contains("none of these"), "{table}");
    let line = photos.answers(&["noise.png", "--format", "jsonl", "--all"]);
    let answer: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    let classes = answer["probabilities"].as_object().unwrap().values().map(|p| p.as_f64().unwrap());
    assert!((classes.sum::<f64>() + answer["unknown"].as_f64().unwrap() - 1.0).abs() < 1e-5, "{answer}");
    assert!(answer["unknown"].as_f64().unwrap() > 0.5, "{answer}");
}
