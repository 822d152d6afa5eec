//! Tests of repairs on a small folder: plans, copies, moves in place, undo, interrupted repairs and hostile files.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use super::*;
use crate::audit::{Action, Audit};
use crate::embeddings::{Embeddings, Items};
use crate::error::Error;
use crate::progress::Progress;

const FILES: [(&str, &str); 6] = [
    ("all/cat/1.jpg", "cat one"),
    ("all/cat/2.jpg", "a dog"),
    ("all/cat/notes.txt", "notes"),
    ("all/dog/1.jpg", "dog one"),
    ("all/dog/2.jpg", "a cat"),
    ("all/dog/3.jpg", "a spoon"),
];

fn folder() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in FILES {
        fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
        fs::write(root.path().join(name), content).unwrap();
    }
    root
}

fn listing() -> Vec<ListedItem> {
    let listed = |(name, content): (&str, &str)| ListedItem {
        item: name.into(),
        class: name.ends_with("jpg").then(|| name[4..7].into()),
        size: Some(content.len() as u64),
        hash: Some(hash(content)),
        ..ListedItem::default()
    };
    FILES.into_iter().map(listed).collect()
}

fn hash(content: &str) -> String {
    blake3::hash(content.as_bytes()).to_hex().to_string()
}

/// The hash of an item as `folder` wrote it.
fn unchanged(listed: &ListedItem) -> Option<String> {
    let content = FILES.into_iter().find(|(name, _)| *name == listed.item)?.1;
    Some(hash(content))
}

fn locked(root: &Path) -> LockedFolder {
    LockedFolder::open(root).unwrap()
}

fn outcome(moved: usize, already_moved: usize) -> Outcome {
    Outcome { moved, already_moved, problems: Vec::new() }
}

/// A plan that swaps two images of different classes, quarantines one and moves one to a new class.
fn plan_text(root: &Path) -> String {
    let header = format!(
        "{{\"format\": \"trueshot-plan/1\", \"kind\": \"folder\", \"root\": {:?}, \"items\": 5, \"accuracy\": 0.5, \"accuracy_after\": 1}}",
        root
    );
    let listing = serde_json::json!({ "listing": listing() });
    [
        header.as_str(),
        "# by hand",
        "",
        r#"{"item": "all/cat/2.jpg", "from": "cat", "to": "dog"}"#,
        r#"{"item": "all/dog/2.jpg", "from": "dog", "to": "cat", "p_wrong": 0.9}"#,
        r#"{"item": "all/dog/3.jpg", "from": "dog", "quarantine": true}"#,
        r#"{"item": "all/cat/1.jpg", "from": "cat", "to": "lynx"}"#,
        &listing.to_string(),
    ]
    .join("\n")
}

/// The contents of all files below a folder, by relative path.
fn contents(root: &Path) -> BTreeMap<String, String> {
    fn walk(folder: &Path, root: &Path, files: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, root, files),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                    files.insert(name, fs::read_to_string(&path).unwrap());
                }
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(root, root, &mut files);
    files
}

/// The contents of the folder after the plan was carried out.
fn repaired() -> BTreeMap<String, String> {
    let names = [
        ("all/lynx/1.jpg", "cat one"),
        ("all/dog/2-2.jpg", "a dog"),
        ("all/cat/notes.txt", "notes"),
        ("all/dog/1.jpg", "dog one"),
        ("all/cat/2-2.jpg", "a cat"),
        ("_quarantine/all/dog/3.jpg", "a spoon"),
    ];
    names.into_iter().map(|(name, content)| (name.into(), content.into())).collect()
}

fn plan(root: &Path) -> RepairPlan {
    RepairPlan::parse(&plan_text(root), Path::new("plan.jsonl")).unwrap()
}

#[test]
fn a_copy_is_repaired_and_the_original_is_unchanged() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let before = contents(root.path());
    let plan = plan(root.path());
    plan.check(&listing(), &unchanged).unwrap();
    let moves = moves(&plan, []);
    let into = out.path().join("clean");
    let copied = copy(root.path(), &into, &moves, &()).unwrap();
    assert_eq!(copied.files, 6);
    let mut copied_files = contents(&into);
    assert!(copied_files.remove("trueshot-repair.jsonl").unwrap().contains("lynx"));
    assert_eq!(copied_files, repaired());
    assert_eq!(contents(root.path()), before);
    assert!(matches!(copy(root.path(), &into, &moves, &()), Err(Error::Write { .. })), "not twice");
    let inside = root.path().join("all/copy");
    assert!(matches!(copy(root.path(), &inside, &moves, &()), Err(Error::Write { .. })), "not inside");
}

/// The names and contents of all files in a ZIP archive, in the order of the archive.
fn zipped(path: &Path) -> Vec<(String, String)> {
    let mut archive = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    let names: Vec<String> = archive.file_names().map(|name| name.unwrap().into_owned()).collect();
    let mut files = Vec::new();
    for name in names.into_iter().filter(|name| !name.ends_with('/')) {
        let text = std::io::read_to_string(archive.by_name(&name).unwrap()).unwrap();
        files.push((name, text));
    }
    files
}

#[test]
fn a_copy_to_a_zip_archive_has_the_same_files_and_always_the_same_bytes() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let moves = moves(&plan(root.path()), []);
    let into = out.path().join("clean.zip");
    fs::create_dir(root.path().join("all/empty")).unwrap();
    assert_eq!(copy(root.path(), &into, &moves, &()).unwrap().files, 6);
    let mut files = zipped(&into);
    let (name, log) = files.pop().unwrap();
    assert!(name == LOG && log.contains("lynx"), "{name}: {log}");
    assert_eq!(files, repaired().into_iter().collect::<Vec<_>>(), "sorted by name");
    let mut archive = zip::ZipArchive::new(fs::File::open(&into).unwrap()).unwrap();
    assert!(archive.by_name("all/empty/").unwrap().is_dir());
    // An equal folder whose files have other times gives the same bytes.
    let other = folder();
    fs::create_dir(other.path().join("all/empty")).unwrap();
    let file = fs::File::options().write(true).open(other.path().join("all/cat/2.jpg")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    let again = out.path().join("again.ZIP");
    copy(other.path(), &again, &moves, &()).unwrap();
    assert_eq!(fs::read(&again).unwrap(), fs::read(&into).unwrap());
    // An existing file is never overwritten, and an archive is not written into the folder that it contains.
    fs::write(&again, "mine").unwrap();
    assert!(matches!(copy(root.path(), &again, &moves, &()), Err(Error::Write { .. })));
    assert_eq!(fs::read_to_string(&again).unwrap(), "mine");
    let inside = root.path().join("all/copy.zip");
    assert!(matches!(copy(root.path(), &inside, &moves, &()), Err(Error::Write { .. })), "not inside");
}

#[test]
fn an_interrupted_copy_to_a_zip_archive_leaves_nothing_and_one_in_progress_is_locked() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let (moves, into) = (moves(&plan(root.path()), []), out.path().join("clean.zip"));
    assert!(matches!(copy(root.path(), &into, &moves, &stop_after(3)), Err(Error::Interrupted)));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "nothing is left");
    let lock = crate::lock::Lock::beside(&into).unwrap();
    assert!(matches!(copy(root.path(), &into, &moves, &()), Err(Error::Locked { .. })));
    drop(lock);
    let source = crate::lock::Lock::on_folder(root.path()).unwrap();
    assert!(matches!(copy(root.path(), &into, &moves, &()), Err(Error::Locked { .. })));
    drop(source);
    copy(root.path(), &into, &moves, &()).unwrap();
    assert_eq!(zipped(&into).len(), 7);
}

#[cfg(unix)]
#[test]
fn a_name_that_is_not_utf_8_cannot_be_in_a_zip_archive() {
    use std::os::unix::ffi::OsStrExt;
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    fs::write(root.path().join(std::ffi::OsStr::from_bytes(b"all/cat/\xff.jpg")), "x").unwrap();
    let message = copy(root.path(), &out.path().join("clean.zip"), &[], &()).unwrap_err().to_string();
    assert!(message.contains("is not valid UTF-8: rename it"), "{message}");
}

#[test]
fn an_interrupted_copy_is_made_again() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let (moves, into) = (moves(&plan(root.path()), []), out.path().join("clean"));
    assert!(matches!(copy(root.path(), &into, &moves, &stop_after(3)), Err(Error::Interrupted)));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "nothing is left");
    copy(root.path(), &into, &moves, &()).unwrap();
    assert_eq!(contents(&into).len(), 7);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_copy_killed_before_its_first_or_after_its_last_file_does_not_block_the_next() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let (moves, into) = (moves(&plan(root.path()), []), out.path().join("clean"));
    let (part, mark) =
        (out.path().join(".clean.trueshot-part"), out.path().join(".clean.trueshot-unfinished"));
    // Interrupted between the mark and the folder, and while the next attempt removes the folder.
    fs::write(&mark, "").unwrap();
    copy(root.path(), &into, &moves, &()).unwrap();
    fs::remove_dir_all(&into).unwrap();
    fs::write(&mark, "").unwrap();
    fs::create_dir_all(part.join("all")).unwrap();
    copy(root.path(), &into, &moves, &()).unwrap();
    // Interrupted between the last rename and the removal of the mark.
    fs::write(&mark, "").unwrap();
    assert!(copy(root.path(), &into, &moves, &()).is_err(), "the copy exists");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing else is left");
    // A folder of the user is not touched.
    fs::remove_dir_all(&into).unwrap();
    fs::create_dir(&part).unwrap();
    fs::write(part.join("mine"), "mine").unwrap();
    assert!(copy(root.path(), &into, &moves, &()).is_err());
    assert_eq!(fs::read_to_string(part.join("mine")).unwrap(), "mine");
}

#[test]
fn moves_in_place_are_made_once_and_undone() {
    let root = folder();
    let text = plan_text(root.path());
    let before = contents(root.path());
    let journal = Journal::new(root.path(), &text, moves(&plan(root.path()), []));
    let path = root.path().with_extension("undo");
    journal.write(&path).unwrap();
    let read = Journal::open(&path).unwrap();
    assert!(read == journal && read.is_of(&text) && !read.is_of("another"));
    let folder = locked(root.path());
    assert_eq!(read.apply(&folder, &()).unwrap(), outcome(4, 0));
    assert_eq!(read.apply(&folder, &()).unwrap(), outcome(0, 4));
    assert!(matches!(LockedFolder::open(root.path()), Err(Error::Locked { .. })), "one repair at a time");
    drop(folder);
    assert_eq!(contents(root.path()), repaired());
    assert_eq!(read.undo(&locked(root.path()), &()).unwrap(), outcome(4, 0));
    assert_eq!(contents(root.path()), before);
    assert!(!root.path().join("_quarantine").exists() && !root.path().join("all/lynx").exists());
    fs::remove_file(path).unwrap();
}

#[test]
fn a_repair_interrupted_at_any_move_can_be_finished_or_undone() {
    for interrupted_at in 0..4 {
        for is_undone in [false, true] {
            let root = folder();
            let before = contents(root.path());
            let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
            for made in &journal.moves()[..interrupted_at] {
                let target = root.path().join(&made.to);
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::rename(root.path().join(&made.from), target).unwrap();
            }
            // In the middle of a move a file has both names.
            let interrupted = &journal.moves()[interrupted_at];
            let target = root.path().join(&interrupted.to);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::hard_link(root.path().join(&interrupted.from), target).unwrap();
            match is_undone {
                false => {
                    journal.apply(&locked(root.path()), &()).unwrap();
                    assert_eq!(contents(root.path()), repaired(), "{interrupted_at}");
                }
                true => {
                    journal.undo(&locked(root.path()), &()).unwrap();
                    assert_eq!(contents(root.path()), before, "{interrupted_at}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_ever_overwritten() {
    let root = folder();
    let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
    fs::write(root.path().join("all/dog/2-2.jpg"), "another file").unwrap();
    let result = journal.apply(&locked(root.path()), &()).unwrap();
    assert_eq!(
        (result.moved, &result.problems[..]),
        (3, &["all/dog/2-2.jpg already exists".to_string()][..])
    );
    assert_eq!(fs::read_to_string(root.path().join("all/cat/2.jpg")).unwrap(), "a dog");
    assert_eq!(fs::read_to_string(root.path().join("all/dog/2-2.jpg")).unwrap(), "another file");
    let others = moves(&plan(root.path()), ["all/DOG/2-2.jpg".to_string()]);
    assert_eq!(others[0].to, "all/dog/2-3.jpg");
}

#[test]
fn a_folder_that_changed_is_refused_with_what_changed() {
    let plan = plan(Path::new("photos"));
    let mut now = listing();
    now.remove(0);
    now[0].size = Some(99);
    now.push(ListedItem {
        item: "all/dog/new.jpg".into(),
        class: Some("dog".into()),
        size: Some(1),
        ..ListedItem::default()
    });
    let refused = plan.check(&now, &unchanged).unwrap_err().to_string();
    assert_eq!(
        refused,
        "photos has changed since the audit: 1 gone (all/cat/1.jpg), 1 new (all/dog/new.jpg), 1 of another size (all/cat/2.jpg)"
    );
}

#[test]
fn files_without_a_class_are_not_compared() {
    let plan = plan(Path::new("photos"));
    let other =
        |item: &str, size| ListedItem { item: item.into(), size: Some(size), ..ListedItem::default() };
    let with = |others: Vec<ListedItem>| [listing(), others].concat();
    let earlier = RepairPlan { listing: with(vec![other("notes.txt", 1), other("gone.txt", 1)]), ..plan };
    earlier.check(&with(vec![other("notes.txt", 2), other("new.html", 1)]), &unchanged).unwrap();
    // A file that is not an image any more counts as missing.
    let mut now = listing();
    now[0].class = None;
    let refused = earlier.check(&now, &unchanged).unwrap_err().to_string();
    assert!(refused.ends_with("1 gone (all/cat/1.jpg)"), "{refused}");
}

#[test]
fn invalid_plans_are_refused_with_the_line() {
    let text = plan_text(Path::new("photos"));
    let refused = |from: &str, to: &str, expected: &str| {
        assert!(text.contains(from), "{from}");
        let message =
            RepairPlan::parse(&text.replace(from, to), Path::new("p.jsonl")).unwrap_err().to_string();
        assert!(message.contains(expected), "'{expected}' is missing in: {message}");
    };
    refused("trueshot-plan/1", "trueshot-plan/9", "line 1: not a plan");
    refused("\"to\": \"lynx\"", "\"to\": \"../../etc\"", "line 7: '../../etc' cannot be the name of a class");
    refused("\"to\": \"lynx\"", "\"to\": \"/etc\"", "cannot be the name of a class");
    refused("\"quarantine\": true", "\"quarantine\": false", "line 6: it has neither 'to' nor 'quarantine'");
    refused("\"p_wrong\": 0.9", "\"quarantine\": true", "line 5: it has both 'to' and 'quarantine'");
    refused("\"p_wrong\": 0.9", "\"surprise\": 1", "line 5: not a change");
    refused(
        "all/dog/3.jpg\", \"from\": \"dog\", \"quarantine\": true",
        "all/dog/2.jpg\", \"from\": \"dog\", \"quarantine\": true",
        "twice",
    );
}

#[test]
fn exported_labels_contain_the_paths_of_the_files() {
    let entry = |item: &str, label: Option<&str>| Labelled {
        item: item.into(),
        path: format!("/photos/{item}"),
        label: label.map(String::from),
        was: "cat".into(),
    };
    let labelled =
        [entry("cat/a, b.jpg", Some("dog")), entry("cat/ü 1.jpg", Some("cat")), entry("cat/x.jpg", None)];
    assert_eq!(
        labels_csv(&labelled),
        "path,label,was\n\"/photos/cat/a, b.jpg\",dog,cat\n/photos/cat/ü 1.jpg,cat,cat\n"
    );
    let tasks: serde_json::Value = serde_json::from_str(&label_studio(&labelled)).unwrap();
    assert_eq!(tasks[1]["data"]["image"], "/data/local-files/?d=cat/%C3%BC%201.jpg");
    assert_eq!(tasks[0]["annotations"][0]["result"][0]["value"]["choices"][0], "dog");
    assert_eq!(tasks[2]["annotations"].as_array().unwrap().len(), 0);
    let labels: serde_json::Value = serde_json::from_str(&fiftyone(&labelled)).unwrap();
    assert_eq!(labels["classes"], serde_json::json!(["cat", "dog"]));
    assert_eq!(labels["labels"]["/photos/cat/a, b.jpg"], 1);
    assert_eq!(labels["labels"].as_object().unwrap().len(), 2);
}

#[test]
fn an_edit_that_keeps_the_size_is_noticed() {
    let plan = plan(Path::new("photos"));
    let edited = |item: &'static str| {
        move |listed: &ListedItem| match listed.item == item {
            true => Some(hash("edited")),
            false => unchanged(listed),
        }
    };
    let refused = plan.check(&listing(), &edited("all/cat/2.jpg")).unwrap_err().to_string();
    assert_eq!(refused, "photos has changed since the audit: 1 edited (all/cat/2.jpg)");
    // A file that stays where it is and was not touched since is not read again; one that was touched is.
    let with_time = |time| -> Vec<ListedItem> {
        listing().into_iter().map(|listed| ListedItem { modified: Some(time), ..listed }).collect()
    };
    let timed = RepairPlan { listing: with_time(1), ..plan };
    timed.check(&with_time(1), &edited("all/dog/1.jpg")).unwrap();
    timed.check(&with_time(2), &unchanged).unwrap();
    assert!(timed.check(&with_time(2), &edited("all/dog/1.jpg")).is_err());
    assert!(timed.check(&with_time(1), &edited("all/cat/2.jpg")).is_err(), "planned items are always read");
}

#[test]
fn sizes_that_are_not_known_are_not_compared() {
    let unknown = || -> Vec<ListedItem> {
        listing().into_iter().map(|listed| ListedItem { size: None, ..listed }).collect()
    };
    let sized = plan(Path::new("photos"));
    let unsized_plan = RepairPlan { listing: unknown(), ..sized.clone() };
    unsized_plan.check(&listing(), &unchanged).unwrap();
    sized.check(&unknown(), &unchanged).unwrap();
    // Hashes are compared instead; a file that is gone has none.
    let edited = |_: &ListedItem| Some(hash("edited"));
    assert!(unsized_plan.check(&listing(), &edited).is_err());
    assert!(sized.check(&unknown(), &|_| None).is_err());
    // Without a hash, the file of an item has to have its size.
    let without_hash = |listed| ListedItem { hash: None, ..listed };
    let old = RepairPlan { listing: listing().into_iter().map(without_hash).collect(), ..sized };
    assert!(old.check(&unknown(), &unchanged).unwrap_err().to_string().contains("of another size"));
}

#[test]
fn new_classes_have_the_most_similar_existing_name() {
    let mut plan = plan(Path::new("photos"));
    let new = |name: &str, items, nearest: Option<&str>| NewClass {
        name: name.into(),
        items,
        nearest: nearest.map(String::from),
    };
    assert_eq!(plan.new_classes(), [new("lynx", 1, None)]);
    plan.changes[0].to = Some("Dogs".into());
    plan.changes[1].to = Some("Dogs".into());
    assert_eq!(plan.new_classes(), [new("Dogs", 2, Some("dog")), new("lynx", 1, None)]);
}

#[test]
fn items_copied_by_label_have_distinct_names_inside_the_copy() {
    let mut plan = plan(Path::new("list.csv"));
    plan.listing.retain(|listed| listed.class.is_some());
    // An item with two labels is copied twice.
    let twice = ListedItem { class: Some("cat".into()), ..plan.listing[2].clone() };
    plan.listing.push(twice);
    let items = copies(&plan, CopyLayout::ByLabel).unwrap();
    let to: Vec<&str> = items.iter().map(|item| item.to.as_str()).collect();
    let expected =
        ["lynx/1.jpg", "dog/2.jpg", "dog/1.jpg", "cat/2.jpg", "_quarantine/dog/3.jpg", "cat/1.jpg"];
    assert_eq!(to, expected);
    let contents_of = |item: usize| Ok(FileContents::Bytes(items[item].from.clone().into_bytes()));
    let out = tempfile::tempdir().unwrap();
    let into = out.path().join("clean");
    assert_eq!(copy_items(&items, &contents_of, &into, &()).unwrap(), 6);
    let copied_files = contents(&into);
    assert_eq!((copied_files.len(), copied_files["cat/2.jpg"].as_str()), (7, "all/dog/2.jpg"));
    let outside = [Move { from: "a.jpg".into(), to: "../a.jpg".into() }];
    let other = out.path().join("other");
    assert!(matches!(copy_items(&outside, &contents_of, &other, &()), Err(Error::Write { .. })));
    let unreadable = |_: usize| Err(std::io::Error::other("damaged"));
    assert!(matches!(copy_items(&items, &unreadable, &other, &()), Err(Error::Read { .. })));
    assert!(!other.exists() && !out.path().join("a.jpg").exists());
    // In class folders, unchanged items keep their path.
    let items = copies(&plan, CopyLayout::ClassFolders).unwrap();
    assert_eq!((items[2].to.as_str(), items[4].to.as_str()), ("all/dog/1.jpg", "_quarantine/all/dog/3.jpg"));
    // Of two items with the same name, the one that does not move keeps it.
    plan.changes[3].to = Some("dog".into());
    let items = copies(&plan, CopyLayout::ByLabel).unwrap();
    assert_eq!((items[0].to.as_str(), items[2].to.as_str()), ("dog/1-2.jpg", "dog/1.jpg"));
    plan.listing[0].class = Some("..".into());
    assert!(matches!(copies(&plan, CopyLayout::ByLabel), Err(Error::BadPlan { .. })));
}

#[test]
fn undo_reverts_the_moves_it_can_and_can_be_repeated() {
    let root = folder();
    let before = contents(root.path());
    let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
    journal.apply(&locked(root.path()), &()).unwrap();
    let (missing, elsewhere) = (root.path().join("all/dog/2-2.jpg"), root.path().with_extension("kept"));
    fs::rename(&missing, &elsewhere).unwrap();
    let result = journal.undo(&locked(root.path()), &()).unwrap();
    assert_eq!((result.moved, result.already_moved), (3, 0));
    assert_eq!(result.problems, ["neither all/dog/2-2.jpg nor all/cat/2.jpg exists"]);
    fs::rename(&elsewhere, &missing).unwrap();
    assert_eq!(journal.undo(&locked(root.path()), &()).unwrap(), outcome(1, 3));
    assert_eq!(contents(root.path()), before);
}

#[test]
fn undo_files_that_would_delete_or_leave_the_folder_are_refused() {
    let root = folder();
    let before = contents(root.path());
    let outside = root.path().with_extension("outside");
    fs::create_dir(&outside).unwrap();
    let name = outside.file_name().unwrap().to_string_lossy().into_owned();
    let undo_file = |folders: &str, moves: &[(&str, &str)]| {
        let header = format!(
            "{{\"format\": \"trueshot-undo/1\", \"root\": {:?}, \"plan\": \"\", \"folders\": [{folders}]}}",
            root.path()
        );
        let lines = moves.iter().map(|(from, to)| format!("{{\"from\": {from:?}, \"to\": {to:?}}}"));
        std::iter::once(header).chain(lines).collect::<Vec<_>>().join("\n")
    };
    let hostile = [
        undo_file("", &[("all/cat/1.jpg", "all/cat/1.jpg")]),
        undo_file("", &[("all/cat/1.jpg", "all/cat/./1.jpg")]),
        undo_file("", &[("all/./cat/1.jpg", "all/cat/1.jpg")]),
        undo_file("", &[("../x", "all/cat/9.jpg")]),
        undo_file("", &[("/etc/hosts", "all/cat/9.jpg")]),
        undo_file("", &[("all/cat/9.jpg", "all/cat/1.jpg"), ("all/cat/8.jpg", "all/cat/1.jpg")]),
        undo_file("", &[("all/cat/9.jpg", "all/cat/1.jpg"), ("all/cat/1.jpg", "all/cat/8.jpg")]),
        undo_file(&format!("\"../{name}\""), &[]),
        undo_file("\"all/dog\"", &[("all/dog/9.jpg", "all/cat/9.jpg")]),
    ];
    for text in hostile {
        let path = root.path().with_extension("undo");
        fs::write(&path, &text).unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::BadPlan { .. })), "{text}");
        fs::remove_file(path).unwrap();
    }
    assert_eq!(contents(root.path()), before);
    fs::remove_dir(outside).unwrap();
}

#[test]
#[cfg(unix)]
fn links_in_the_folder_are_never_followed() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    // A class folder, and the quarantine, that lead out of the folder: refused before anything is moved.
    for link in ["all/lynx", "_quarantine"] {
        let root = folder();
        let before = contents(root.path());
        symlink(outside.path(), root.path().join(link)).unwrap();
        let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
        let folder = locked(root.path());
        let obstacles = journal.obstacles(&folder);
        assert!(obstacles.len() == 1 && obstacles[0].contains("is a link or not a folder"), "{obstacles:?}");
        // A link that appears only after this check is not followed either: its move fails, the others are made.
        let result = journal.apply(&folder, &()).unwrap();
        assert_eq!((result.moved, result.problems.len()), (3, 1));
        journal.undo(&folder, &()).unwrap();
        drop(folder);
        fs::remove_file(root.path().join(link)).unwrap();
        assert_eq!(contents(root.path()), before);
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // An image that is a link is not moved.
    let root = folder();
    fs::remove_file(root.path().join("all/cat/1.jpg")).unwrap();
    symlink(outside.path().join("x"), root.path().join("all/cat/1.jpg")).unwrap();
    let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
    let obstacles = journal.obstacles(&locked(root.path()));
    assert_eq!(obstacles, ["all/cat/1.jpg is a link or not a file"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_move_to_another_file_system_copies_and_can_be_finished_or_undone() {
    // /dev/shm is a file system of its own; without it there is nothing to test.
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let root = folder();
    let same = |a: &Path, b: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(a).unwrap().dev() == fs::metadata(b).unwrap().dev()
    };
    if same(other.path(), root.path()) {
        return;
    }
    let before = contents(root.path());
    // Names are resolved below one folder, so the test reaches the other file system through the parent of both.
    let (from, to) = (root.path().join("all/cat/1.jpg"), other.path().join("lynx/1.jpg"));
    let name = |path: &Path| path.strip_prefix("/").unwrap().to_str().unwrap().to_owned();
    let journal = Journal::new(Path::new("/"), "", vec![Move { from: name(&from), to: name(&to) }]);
    let moved = |result: Result<Outcome, Error>| result.unwrap().moved;
    let folder = LockedFolder::unlocked(Path::new("/"));
    assert_eq!(moved(journal.apply(&folder, &())), 1);
    assert!(!from.exists() && fs::read_to_string(&to).unwrap() == "cat one");
    assert_eq!(fs::read_dir(other.path().join("lynx")).unwrap().count(), 1, "no part is left");
    // Interrupted after the copy: the source still exists.
    fs::copy(&to, &from).unwrap();
    assert_eq!(moved(journal.apply(&folder, &())), 1);
    assert!(!from.exists());
    assert_eq!(moved(journal.undo(&folder, &())), 1);
    assert!(!to.exists());
    assert_eq!(contents(root.path()), before);
}

#[test]
fn a_long_name_that_is_taken_is_truncated_to_make_room_for_its_number() {
    let name = format!("{}.jpg", "ü".repeat(125));
    let long = format!("all/cat/{name}");
    let listed = |item: &str, class: &str| ListedItem {
        item: item.into(),
        class: Some(class.into()),
        ..ListedItem::default()
    };
    let change = |item: &str| PlannedChange {
        item: item.into(),
        from: "cat".into(),
        row: None,
        to: Some("dog".into()),
        quarantine: false,
        p_wrong: None,
        reason: None,
        effect: None,
    };
    let mut plan = plan(Path::new("photos"));
    plan.listing = vec![listed(&long, "cat"), listed(&format!("all/dog/{name}"), "dog")];
    plan.changes = vec![change(&long)];
    let to = &moves(&plan, [])[0].to;
    let last = to.rsplit('/').next().unwrap();
    assert!(last.len() <= 255 && last.ends_with("ü-2.jpg"), "{to}");
}

#[test]
fn a_copy_names_the_source_file_that_cannot_be_read_or_the_file_that_cannot_be_written() {
    let out = tempfile::tempdir().unwrap();
    let items = [Move { from: "cat/1.jpg".into(), to: "dog/1.jpg".into() }];
    let gone = |_: usize| Ok(FileContents::Path(out.path().join("gone.jpg")));
    let mut copies = vec!["clean"];
    copies.extend(cfg!(feature = "zip").then_some("clean.zip"));
    for name in copies {
        let error = copy_items(&items, &gone, &out.path().join(name), &()).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("gone.jpg: No such file"), "{error}");
    }
    let items = ["a.jpg", "b.jpg"].map(|from| Move { from: from.into(), to: "dog/1.jpg".into() });
    let bytes = |_: usize| Ok(FileContents::Bytes(vec![1]));
    let error = copy_items(&items, &bytes, &out.path().join("twice"), &()).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("twice/dog/1.jpg"), "{error}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "nothing is left");
}

/// Progress that stops the work when `files` files are done.
fn stop_after(files: u64) -> impl Progress {
    move |done: u64, _total: u64| {
        if done < files { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

#[test]
fn a_change_may_lead_to_every_class_of_the_collection_but_not_out_of_it() {
    let parsed = |kind: &str, class: &str| {
        let item = |item: &str, class: &str| serde_json::json!({"item": item, "class": class});
        let listing = serde_json::json!({"listing": [item("1.jpg", "cat"), item("2.jpg", class)]});
        let change = serde_json::json!({"item": "1.jpg", "from": "cat", "to": class});
        let header =
            serde_json::json!({"format": "trueshot-plan/1", "kind": kind, "root": "data", "items": 2});
        RepairPlan::parse(&format!("{header}\n{change}\n{listing}\n"), Path::new("p.jsonl"))
    };
    for class in ["Sport: Football", "GO:0008150"] {
        for kind in ["folder", "pictures"] {
            assert_eq!(parsed(kind, class).is_ok(), !cfg!(windows), "{kind} {class}");
        }
    }
    for class in ["..", "../up", "/etc", "a/../../up", ""] {
        for kind in ["folder", "pictures"] {
            let message = parsed(kind, class).unwrap_err().to_string();
            assert!(message.contains("line 2: ") && message.contains("cannot be the name of"), "{message}");
        }
    }
    for class in ["Sport: Football", ".."] {
        assert!(parsed("embeddings", class).is_ok(), "{class} is not a folder");
    }
}

#[test]
fn an_edited_plan_says_nothing_about_accuracy() {
    let parsed = |text: &str| RepairPlan::parse(text, Path::new("p.jsonl")).unwrap();
    let mut plan = plan(Path::new("photos"));
    assert!(plan.is_edited(), "unknown for plans of earlier versions");
    plan.header.digest = Some(super::plan::digest(&plan.changes));
    let summary = parsed(&plan.to_text()).summary();
    assert!(summary.ends_with("accuracy: 50.0 % now, 100.0 % after all changes"), "{summary}");
    let edited = parsed(&plan.to_text().replace("\"to\":\"lynx\"", "\"to\":\"dog\""));
    assert_eq!(edited.summary(), "3 to relabel, 1 to quarantine, 0 to review");
}

#[test]
fn a_plan_without_its_last_line_is_called_truncated() {
    let text = plan_text(Path::new("photos"));
    let truncated = &text[..text.rfind('\n').unwrap()];
    let parsed = |text: &str| RepairPlan::parse(text, Path::new("p.jsonl"));
    let message = parsed(truncated).unwrap_err().to_string();
    assert_eq!(message, "p.jsonl: the last line, which lists all images, is missing: the plan is truncated");
    assert!(parsed(&truncated.replace("\"folder\"", "\"embeddings\"")).is_ok(), "rows are not listed");
}

#[test]
fn a_copy_with_a_move_of_a_missing_file_or_out_of_the_copy_is_refused() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let (moves, into) = (moves(&plan(root.path()), []), out.path().join("clean"));
    fs::remove_file(root.path().join("all/cat/2.jpg")).unwrap();
    let error = copy(root.path(), &into, &moves, &()).unwrap_err();
    assert!(matches!(error, Error::CollectionChanged { .. }), "{error}");
    assert!(error.to_string().ends_with("1 gone (all/cat/2.jpg)"), "{error}");
    let outside = [Move { from: "all/cat/1.jpg".into(), to: "../1.jpg".into() }];
    assert!(matches!(copy(root.path(), &into, &outside, &()), Err(Error::Write { .. })));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
#[cfg(unix)]
fn a_copy_of_a_read_only_file_has_its_modification_time() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let path = root.path().join("all/cat/1.jpg");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    let into = out.path().join("clean");
    copy(root.path(), &into, &[], &()).unwrap();
    assert_eq!(fs::metadata(into.join("all/cat/1.jpg")).unwrap().modified().unwrap(), time);
}

/// Twenty rows of two classes, all of one name; row 3 has the wrong label.
fn rows_of_one_name() -> Embeddings {
    let values = (0..20).flat_map(|row| {
        let centre = if row % 2 == 0 { [1.0, 0.0] } else { [0.0, 1.0] };
        [centre[0] + 0.01 * row as f32, centre[1] - 0.01 * row as f32]
    });
    let label = |row: usize| if row.is_multiple_of(2) != (row == 3) { "ant" } else { "bee" };
    let labels = (0..20).map(|row| label(row).to_string()).collect();
    let rows = Embeddings::from_rows(values.collect(), 2, labels).unwrap();
    rows.with_items(Items::from_names(["x"; 20])).unwrap()
}

#[test]
fn rows_of_the_same_name_are_changed_by_their_number() {
    let data = rows_of_one_name();
    let audit = Audit::of(&data).run().unwrap();
    assert_eq!(audit.with_actions(&[Action::Relabel]), [3]);
    let mut plan = RepairPlan::new(&audit, &data, CollectionKind::Embeddings, Path::new("x"), Vec::new());
    assert!(plan.to_text().contains(r#""from":"ant","row":3,"to":"bee""#), "{}", plan.to_text());
    let mut plan_again = RepairPlan::parse(&plan.to_text(), Path::new("plan.jsonl")).unwrap();
    assert!(!plan_again.is_edited());
    plan_again.listing = (0..20)
        .map(|row| ListedItem {
            item: "x".into(),
            class: Some(data.classes()[data.labels()[row] as usize].clone()),
            ..ListedItem::default()
        })
        .collect();
    plan.listing = plan_again.listing.clone();
    plan_again.check(&plan.listing, &|_| None).unwrap();
    let refused = |row: Option<usize>| {
        let mut edited = plan.clone();
        edited.changes[0].row = row;
        edited.check(&plan.listing, &|_| None).unwrap_err().to_string()
    };
    assert!(refused(Some(5)).contains("row 5 is not x under class 'ant'"), "{}", refused(Some(5)));
    assert!(refused(None).contains("11 rows under class 'ant' are named x"), "{}", refused(None));
}

#[test]
fn a_plan_in_which_rows_are_exchanged_counts_as_edited() {
    let change = |row: usize, to: &str| PlannedChange {
        item: "x".into(),
        from: "ant".into(),
        row: Some(row),
        to: Some(to.into()),
        quarantine: false,
        p_wrong: None,
        reason: None,
        effect: None,
    };
    let digest = |changes: &[PlannedChange]| super::plan::digest(changes);
    let planned = digest(&[change(3, "bee"), change(5, "cat")]);
    assert_eq!(digest(&[change(5, "cat"), change(3, "bee")]), planned);
    assert_ne!(digest(&[change(5, "bee"), change(3, "cat")]), planned);
}
