//! Tests of the width of tables: whole names in a pipe, and names shortened to `--columns` or `COLUMNS`.

use crate::fixture::{EmbeddingsFolder, misused, text};
use crate::photos::PhotoFolder;

const LONG: &str =
    "a photograph with a name that is longer than most terminals are wide, taken in the garden.png";

/// Photos with two exchanged, one of them with a long name.
fn photos() -> PhotoFolder {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let named = |name: &str| photos.path("photos").join(name);
    std::fs::rename(named("rings/0.png"), named("rings").join(LONG)).unwrap();
    photos
}

/// The standard output of a command; `columns` is the value of the variable `COLUMNS`.
fn shown(photos: &PhotoFolder, arguments: &[&str], columns: Option<&str>) -> String {
    let mut command = photos.trueshot(arguments);
    columns.map(|columns| command.env("COLUMNS", columns));
    text(&command.assert().success().get_output().stdout)
}

#[test]
fn pipes_and_files_have_whole_names_and_columns_are_fitted_if_asked_for() {
    let photos = photos();
    photos.audit(&["--plan", "plan.jsonl", "-o", "audit.txt"]).env("COLUMNS", "80").assert().success();
    photos.trueshot(&["fit", "photos", "-o", "classifier.safetensors"]).assert().success();
    let whole = format!("rings/{LONG}");
    assert!(std::fs::read_to_string(photos.path("audit.txt")).unwrap().contains(&whole));
    let commands: [&[&str]; 3] =
        [&["audit", "photos"], &["repair", "plan.jsonl"], &["predict", "classifier.safetensors", "photos"]];
    for command in commands {
        let plain = shown(&photos, command, None);
        assert!(plain.contains(&whole), "{plain}");
        for (option, variable, width) in
            [(Some("90"), None, 90), (None, Some("100"), 100), (Some("90"), Some("70"), 90)]
        {
            let columns = option.map(|option| ["--columns", option]);
            let arguments = [command, columns.as_ref().map_or(&[], |columns| &columns[..])].concat();
            let narrow = shown(&photos, &arguments, variable);
            let line = narrow.lines().find(|line| line.contains('…')).unwrap_or_else(|| panic!("{narrow}"));
            assert!(line.contains("rings/a ") && line.contains(".png"), "{line}");
            let table = narrow.lines().filter(|line| line.contains(".png"));
            assert!(table.clone().all(|line| line.chars().count() <= width), "{narrow}");
        }
    }
    misused(photos.audit(&["--columns", "5"]), &["--columns", "5"]);
    // An invalid width in the variable is ignored.
    assert!(shown(&photos, &["audit", "photos"], Some("wide")).contains(&whole));
}

#[test]
fn a_note_that_does_not_fit_behind_the_name_of_an_item_is_on_its_own_line() {
    let photos = photos();
    photos.trueshot(&["fit", "photos", "-o", "classifier.safetensors"]).assert().success();
    let predict = ["predict", "classifier.safetensors", "photos", "--all", "--columns", "80"];
    let table = shown(&photos, &predict, None);
    let mut lines = table.lines().skip_while(|line| !line.contains('…'));
    let (line, note) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(line.ends_with(".png") && note.starts_with("       (") && note.ends_with(')'), "{table}");
}

#[test]
fn tables_of_eval_and_inspect_have_the_given_width() {
    let folder = EmbeddingsFolder::new();
    let widest = |arguments: &[&str]| {
        let shown = text(&folder.trueshot(arguments).assert().success().get_output().stdout);
        shown.lines().map(|line| line.chars().count()).max().unwrap()
    };
    let eval = ["eval", "data.safetensors", "--episodes", "5", "--significance"];
    let narrow = widest(&[&eval[..], &["--columns", "60"]].concat());
    let wide = widest(&[&eval[..], &["--columns", "160"]].concat());
    assert!(narrow < wide && wide <= 160, "{narrow} and {wide}");
    let inspected = folder.trueshot(&["inspect", "data.safetensors", "--columns", "50"]).assert().success();
    let inspected = text(&inspected.get_output().stdout);
    // The fingerprint is never shortened.
    let mut others = inspected.lines().filter(|line| !line.starts_with("fingerprint"));
    assert!(others.all(|line| line.chars().count() <= 50), "{inspected}");
}
