//! Tests of `trueshot reproduce` on the built-in drawings, at a very small scale.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use crate::fixture::{TRUESHOT, text};

/// A small table and a figure; the output folder follows.
const TABLE: [&str; 10] = [
    "reproduce",
    "cls_abl",
    "support_sets",
    "--dataset",
    "omniglot",
    "--scale",
    "0.001",
    "--episodes",
    "20",
    "--out",
];

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs the command of [`TABLE`], which must succeed, and returns its messages.
fn reproduce(out: &Path) -> String {
    let done = std::process::Command::new(TRUESHOT).args(TABLE).arg(out).output().unwrap();
    let told = text(&done.stderr);
    assert!(done.status.success(), "{told}");
    told
}

/// The reports of an uninterrupted run of the command of [`TABLE`].
static UNINTERRUPTED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let out = folder();
    reproduce(out.path());
    reports(out.path())
});

fn reports(out: &Path) -> Vec<Vec<u8>> {
    ["html", "md", "tex", "json"]
        .map(|form| std::fs::read(out.join(format!("report.{form}"))).unwrap())
        .to_vec()
}

/// The files in the cache whose names end in `ending`.
fn results(out: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(out.join("cache")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.display().to_string().ends_with(ending)).collect();
    found.sort();
    found
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_in_the_same_report() {
    let out = folder();
    // The moments of the interruptions depend on the clock; the report must not.
    let mut moment =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_micros();
    for _ in 0..10 {
        moment = moment.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut command = std::process::Command::new(TRUESHOT);
        command.args(TABLE).arg(out.path()).stderr(Stdio::null());
        let mut run = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(moment >> 16) % 1500));
        run.kill().unwrap();
        run.wait().unwrap();
    }
    reproduce(out.path());
    assert!(reports(out.path()) == *UNINTERRUPTED, "the reports differ");
}

#[test]
fn a_run_split_by_job_minutes_gives_the_same_report_and_the_total_time() {
    let out = folder();
    let period = |minutes: &str| {
        let mut command = std::process::Command::new(TRUESHOT);
        command.args(TABLE).arg(out.path()).args(["--job-minutes", minutes]).output().unwrap()
    };
    let first = period("0.00001");
    assert_eq!(first.status.code(), Some(130), "{}", text(&first.stderr));
    assert!(text(&first.stderr).contains("run the same command again to continue"));
    let finished = (0..100).map(|_| period("0.05")).find(|run| run.status.code() != Some(130)).unwrap();
    let message = text(&finished.stderr);
    assert!(finished.status.success(), "{message}");
    assert!(message.contains("training on ") && message.contains(" runs"), "{message}");
    assert!(reports(out.path()) == *UNINTERRUPTED, "the reports differ");
    assert!(results(out.path(), ".seconds").is_empty(), "times of stopped runs are in the records");
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_waits_for_the_step_and_the_same_command_continues() {
    use std::io::{BufRead, BufReader, Read};
    let out = folder();
    let mut command = std::process::Command::new(TRUESHOT);
    let mut run = command.args(TABLE).arg(out.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(run.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("[1/") {
        assert_ne!(messages.read_line(&mut told).unwrap(), 0, "{told}");
    }
    // The signal goes to this process only, and not to the one that computes the step, so the step runs to its end.
    let process = run.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &process]).status().unwrap().success());
    messages.read_to_string(&mut told).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130), "{told}");
    assert!(told.contains("stopped; run the same command again to continue"), "{told}");
    assert!(!results(out.path(), ".done.json").is_empty(), "the step is recorded: {told}");
    reproduce(out.path());
}

#[test]
fn a_dry_run_creates_nothing_and_threads_have_a_range() {
    let out = folder();
    let report = out.path().join("report");
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(TRUESHOT);
        command.args(TABLE).arg(&report).args(more).output().unwrap()
    };
    assert!(run(&["--dry-run"]).status.success());
    assert!(!report.exists());
    assert_eq!(run(&["--dry-run", "--threads", "0"]).status.code(), Some(2));
}

#[test]
fn finished_results_are_kept_and_damaged_ones_are_computed_again() {
    let out = folder();
    let out = out.path();
    assert!(reproduce(out).contains("[1/"), "there was something to do");
    let first = reports(out);
    let again = reproduce(out);
    assert!(!again.contains("[1/"), "nothing is done twice: {again}");
    assert!(reports(out) == first);

    let kind = |path: &Path, kind: &str| path.file_name().unwrap().to_string_lossy().starts_with(kind);
    for features in results(out, ".safetensors").iter().filter(|path| kind(path, "features")) {
        std::fs::remove_file(features).unwrap();
    }
    let without_features = reproduce(out);
    assert!(!without_features.contains("[1/"), "no result is missing: {without_features}");

    let model = results(out, ".safetensors").into_iter().find(|path| kind(path, "backbone")).unwrap();
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(model, bytes).unwrap();
    let record = results(out, ".done.json").into_iter().find(|path| kind(path, "evaluation")).unwrap();
    let contents = std::fs::read(&record).unwrap();
    std::fs::write(record, &contents[..contents.len() / 2]).unwrap();
    let recomputed = reproduce(out);
    // The evaluation whose record is invalid needs the features that were removed above: they are reported, too.
    let (report, removed) = ("does not match its record", "cache/features-");
    assert!(
        recomputed.lines().filter(|line| line.contains(report) && !line.contains(removed)).count() == 2,
        "the model and the record that were damaged: {recomputed}"
    );
    assert!(reports(out) == first);
}

#[test]
fn a_report_says_what_was_shortened_and_what_is_missing() {
    let out = folder();
    let names = [
        "reproduce",
        "negmargin_text",
        "sym_swap_5w10k",
        "--dataset",
        "miniimagenet",
        "--scale",
        "0.5",
        "--out",
    ];
    let done = std::process::Command::new(TRUESHOT).args(names).arg(out.path()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report = std::fs::read_to_string(out.path().join("report.md")).unwrap();
    assert!(report.contains("0.5 of its length"), "{report}");
    assert!(report.contains("| NegMargin | - (69.66) | - (59.88) | - (47.53) | - (35.67) |"), "{report}");
    assert!(report.contains("no data folder was given"), "{report}");
}

#[test]
fn figures_are_drawn_into_the_page() {
    let out = folder();
    let small = ["--dataset", "omniglot", "--scale", "0.001", "--episodes", "20", "--out"];
    let figures = ["noise_curve", "support_sets", "attention_maps"];
    let mut command = std::process::Command::new(TRUESHOT);
    let done = command.arg("reproduce").args(figures).args(small).arg(out.path()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let page = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    assert_eq!(
        page.matches("stroke-dasharray=\"9 5\"").count(),
        3 * 10,
        "10 of 25 labels are wrong in each set"
    );
    assert_eq!(page.matches("<img class=\"map\" alt=\"TraNFS-3 on Omniglot with ").count(), 3);
    assert!(page.contains("mislabelled samples of 5 per class, symmetric noise"), "the axis of the curves");
    assert!(!page.contains("src=\"http"), "nothing is fetched");
    let report = std::fs::read_to_string(out.path().join("report.md")).unwrap();
    for part in [
        "|  | 0 of 5 | 1 of 5 |",
        "- Omniglot with paired noise of 40 %: in report.html",
        "![Accuracy against noise](report-omniglot.svg)",
    ] {
        assert!(report.contains(part), "'{part}' is missing in: {report}");
    }
    let commands = std::fs::read_to_string(out.path().join("report-commands.md")).unwrap();
    assert!(commands.contains("trueshot attention cache/"), "{commands}");
    assert!(std::fs::read_to_string(out.path().join("report-omniglot.svg")).unwrap().contains("TraNFS-3"));
    assert!(!report.contains("| MAML |"), "only some rows are drawn");
}

/// Class folders of tiny images.
fn write_classes(folder: &Path, classes: &[&str], pictures: u8) {
    for class in classes {
        let place = folder.join(class);
        std::fs::create_dir_all(&place).unwrap();
        for number in 0..pictures {
            image::RgbImage::from_pixel(4, 4, image::Rgb([number, 90, 30]))
                .save(place.join(format!("{number}.png")))
                .unwrap();
        }
    }
}

#[test]
fn support_sets_of_folders_are_drawn_as_far_as_there_are_pictures() {
    let data = folder();
    write_classes(&data.path().join("mini/train"), &["ant"], 1);
    write_classes(&data.path().join("mini/val"), &["bee"], 12);
    write_classes(&data.path().join("mini/test"), &["cat", "dog", "eel", "fox", "gnu"], 25);
    let draw = |more: &[&str]| {
        let out = folder();
        let mut command = std::process::Command::new(TRUESHOT);
        command.args(["reproduce", "support_sets", "--dataset", "miniimagenet", "--data"]);
        let done = command.arg(data.path()).arg("--out").arg(out.path()).args(more).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        std::fs::read_to_string(out.path().join("report.html")).unwrap()
    };
    let page = draw(&[]);
    assert_eq!(page.matches("data:image/jpeg;base64,").count(), 3 * 25);
    assert_eq!(page.matches("wrong label, true class bee").count(), 10, "of a validation class");
    let others = data.path().join("others");
    write_classes(&others.join("train"), &["oak"], 1);
    write_classes(&others.join("test"), &["elm"], 12);
    let page = draw(&["--outliers", &others.display().to_string()]);
    assert_eq!(page.matches("data:image/jpeg;base64,").count(), 3 * 25);
    assert_eq!(page.matches("wrong label, true class elm").count(), 10);
    assert!(page.contains("Outliers are images of others. If they differ"), "{page}");
}

fn refused(arguments: &[&str]) -> String {
    let out = folder();
    let done =
        std::process::Command::new(TRUESHOT).args(arguments).arg("--out").arg(out.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
    text(&done.stderr)
}

#[test]
fn mistakes_are_answered_before_anything_is_done() {
    let told = refused(&["reproduce", "table_1"]);
    assert!(told.contains("unknown experiment 'table_1'") && told.contains("sym_swap_5w5k"), "{told}");
    assert!(told.contains("noise_curve, support_sets, attention_maps"), "{told}");
    let told = refused(&["reproduce", "all", "--dataset", "imagenet"]);
    assert!(told.contains("unknown data set 'imagenet'") && told.contains("omniglot"), "{told}");
    let told = refused(&["reproduce", "pair_swap_5w3k", "--dataset", "omniglot"]);
    assert!(told.contains("none of these tables is for these data sets"), "{told}");
    let told = refused(&["reproduce", "all", "--scale", "0"]);
    assert!(told.contains("--scale is 0; allowed: above 0"), "{told}");
    let told = refused(&["reproduce", "all", "--backbone", "omniglot"]);
    assert!(told.contains("DATASET=FILE"), "{told}");
    let told = refused(&["reproduce", "all", "--data", "nowhere"]);
    assert!(told.contains("does not exist"), "{told}");
    let told = refused(&["reproduce", "all", "--outliers", "nowhere"]);
    assert!(told.contains("there is no folder train/ in") && told.contains("hint: outliers need"), "{told}");
}

#[test]
fn a_mistake_in_a_list_of_experiments_is_told_in_one_line() {
    let files = folder();
    let list = files.path().join("mine.toml");
    std::fs::write(&list, "tables = []\n").unwrap();
    let told = refused(&["reproduce", "all", "--experiments", list.to_str().unwrap()]);
    assert!(told.contains("mine.toml: the list of experiments: TOML parse error at line 1"), "{told}");
    assert!(told.contains("unknown field `tables`") && !told.contains("\\n"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn a_class_on_both_sides_is_refused() {
    let data = folder();
    for class in
        ["mini/train/dog", "mini/val/cat", "mini/test/fox", "outliers/train/oak", "outliers/test/fox"]
    {
        std::fs::create_dir_all(data.path().join(class)).unwrap();
    }
    let data = data.path().display().to_string();
    let outliers = format!("{data}/outliers");
    let told = refused(&["reproduce", "outlier_5w5k", "--data", &data, "--outliers", &outliers]);
    assert!(told.contains("class 'fox' is both in test and in outliers/test"), "{told}");
    std::fs::remove_dir(format!("{outliers}/test/fox")).unwrap();
    std::fs::create_dir_all(format!("{outliers}/val/cat")).unwrap();
    let told = refused(&["reproduce", "outlier_5w5k", "--data", &data, "--outliers", &outliers]);
    assert!(told.contains("class 'cat' is both in val and in outliers/val"), "{told}");
}
