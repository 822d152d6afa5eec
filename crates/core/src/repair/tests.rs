use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::*;
use crate::error::Error;

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

fn listing() -> Vec<Listed> {
    let listed = |(name, content): (&str, &str)| Listed {
        item: name.into(),
        class: name.ends_with("jpg").then(|| name[4..7].into()),
        size: Some(content.len() as u64),
    };
    FILES.into_iter().map(listed).collect()
}

/// Two pictures under each other's class, one that belongs nowhere, and one to a class that is new.
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

fn contents(root: &Path) -> BTreeMap<String, String> {
    fn walk(folder: &Path, root: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, root, found),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                    found.insert(name, fs::read_to_string(&path).unwrap());
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    found
}

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

fn plan(root: &Path) -> Plan {
    Plan::parse(&plan_text(root), Path::new("plan.jsonl")).unwrap()
}

#[test]
fn a_copy_is_repaired_and_the_original_stays() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let before = contents(root.path());
    let plan = plan(root.path());
    plan.check(&listing()).unwrap();
    let moves = moves(&plan, []);
    let into = out.path().join("clean");
    let copied = copy(root.path(), &into, &moves, &|_| true).unwrap();
    assert_eq!(copied.files, 6);
    let mut found = contents(&into);
    assert!(found.remove("trueshot-repair.jsonl").unwrap().contains("lynx"));
    assert_eq!(found, repaired());
    assert_eq!(contents(root.path()), before);
    assert!(matches!(copy(root.path(), &into, &moves, &|_| true), Err(Error::Write { .. })), "not twice");
    let inside = root.path().join("all/copy");
    assert!(matches!(copy(root.path(), &inside, &moves, &|_| true), Err(Error::Write { .. })), "not inside");
}

#[test]
fn a_copy_that_was_cut_off_is_made_again() {
    let (root, out) = (folder(), tempfile::tempdir().unwrap());
    let (moves, into) = (moves(&plan(root.path()), []), out.path().join("clean"));
    assert!(matches!(copy(root.path(), &into, &moves, &|done| done < 3), Err(Error::Interrupted)));
    assert!(!into.exists());
    copy(root.path(), &into, &moves, &|_| true).unwrap();
    assert_eq!(contents(&into).len(), 7);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn moves_in_place_are_made_once_and_taken_back() {
    let root = folder();
    let text = plan_text(root.path());
    let before = contents(root.path());
    let journal = Journal::new(root.path(), &text, moves(&plan(root.path()), []));
    let path = root.path().with_extension("undo");
    journal.write(&path).unwrap();
    let read = Journal::open(&path).unwrap();
    assert!(read == journal && read.is_of(&text) && !read.is_of("another"));
    assert_eq!(read.apply().unwrap(), Outcome { moved: 4, before: 0 });
    assert_eq!(contents(root.path()), repaired());
    assert_eq!(read.apply().unwrap(), Outcome { moved: 0, before: 4 });
    assert_eq!(read.undo().unwrap(), Outcome { moved: 4, before: 0 });
    assert_eq!(contents(root.path()), before);
    assert!(!root.path().join("_quarantine").exists() && !root.path().join("all/lynx").exists());
    fs::remove_file(path).unwrap();
}

#[test]
fn wherever_it_was_cut_off_it_can_be_finished_or_undone() {
    for cut in 0..4 {
        for undoes in [false, true] {
            let root = folder();
            let before = contents(root.path());
            let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
            for one in &journal.moves()[..cut] {
                let target = root.path().join(&one.to);
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::rename(root.path().join(&one.from), target).unwrap();
            }
            // In the middle of a move a file has both names.
            let one = &journal.moves()[cut];
            let target = root.path().join(&one.to);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::hard_link(root.path().join(&one.from), target).unwrap();
            match undoes {
                false => assert!(journal.apply().is_ok() && contents(root.path()) == repaired(), "{cut}"),
                true => assert!(journal.undo().is_ok() && contents(root.path()) == before, "{cut}"),
            }
        }
    }
}

#[test]
fn nothing_is_ever_overwritten() {
    let root = folder();
    let journal = Journal::new(root.path(), "", moves(&plan(root.path()), []));
    fs::write(root.path().join("all/dog/2-2.jpg"), "somebody else's").unwrap();
    let refused = journal.apply().unwrap_err();
    assert!(refused.to_string().contains("all/dog/2-2.jpg is there already"), "{refused}");
    assert_eq!(fs::read_to_string(root.path().join("all/cat/2.jpg")).unwrap(), "a dog");
    let others = moves(&plan(root.path()), ["all/DOG/2-2.jpg".to_string()]);
    assert_eq!(others[0].to, "all/dog/2-3.jpg");
}

#[test]
fn a_folder_that_changed_is_refused_with_what_changed() {
    let plan = plan(Path::new("photos"));
    let mut now = listing();
    now.remove(0);
    now[0].size = Some(99);
    now.push(Listed { item: "all/dog/new.jpg".into(), class: Some("dog".into()), size: Some(1) });
    let refused = plan.check(&now).unwrap_err().to_string();
    assert_eq!(
        refused,
        "photos has changed since the audit: 1 gone (all/cat/1.jpg), 1 new (all/dog/new.jpg), 1 of another size (all/cat/2.jpg)"
    );
}

#[test]
fn plans_that_make_no_sense_are_refused_with_the_line() {
    let text = plan_text(Path::new("photos"));
    let refused = |from: &str, to: &str, expected: &str| {
        assert!(text.contains(from), "{from}");
        let message = Plan::parse(&text.replace(from, to), Path::new("p.jsonl")).unwrap_err().to_string();
        assert!(message.contains(expected), "'{expected}' is missing in: {message}");
    };
    refused("trueshot-plan/1", "trueshot-plan/9", "line 1: not a plan");
    refused("\"to\": \"lynx\"", "\"to\": \"../../etc\"", "line 7: '../../etc' cannot be the name of a class");
    refused("\"to\": \"lynx\"", "\"to\": \"/etc\"", "cannot be the name of a class");
    refused("\"quarantine\": true", "\"quarantine\": false", "line 6: neither 'to' nor 'quarantine'");
    refused("\"p_wrong\": 0.9", "\"quarantine\": true", "line 5: both 'to' and 'quarantine'");
    refused("\"p_wrong\": 0.9", "\"surprise\": 1", "line 5: not a change");
    refused(
        "all/dog/3.jpg\", \"from\": \"dog\", \"quarantine\": true",
        "all/dog/2.jpg\", \"from\": \"dog\", \"quarantine\": true",
        "twice",
    );
}

#[test]
fn labels_for_other_programs_say_where_files_are() {
    let one = |item: &str, label: Option<&str>| Labelled {
        item: item.into(),
        path: format!("/photos/{item}"),
        label: label.map(String::from),
        was: "cat".into(),
    };
    let labelled =
        [one("cat/a, b.jpg", Some("dog")), one("cat/ü 1.jpg", Some("cat")), one("cat/x.jpg", None)];
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
