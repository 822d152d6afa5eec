//! Splits: which classes are for training, validation and test, read from split files or built in.
//!
//! A split file is a JSON object whose members are splits. A split is a list of class names, or nested objects of lists
//! whose keys become part of the names, such as `Latin` in `Latin/character01`. Only the keys `background` and
//! `evaluation` at the top, the halves of Omniglot, do not. A name also stands for the classes below it, so that
//! superclasses (`fish` for `fish/trout`) can be split. The usual splits of the paper's data sets are built in. Start
//! with [`Split::open`]; [`Collection::keep_split`](crate::Collection::keep_split) applies a split to a data set.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::omniglot::{self, Omniglot};
use crate::source::drawing_class_name;

/// The largest split file.
const MAX_BYTES: u64 = 64 << 20;
/// The halves of Omniglot, which are not part of a character's name.
const OMNIGLOT_HALVES: [&str; 2] = ["background", "evaluation"];

/// The built-in splits: their names and the JSON.
const BUILT_IN: [(&[&str], &str); 6] = [
    (&["cifar-fs"], include_str!("../assets/splits/cifar-fs.json")),
    (&["cub"], include_str!("../assets/splits/cub.json")),
    (&["fc100"], include_str!("../assets/splits/fc100.json")),
    (&["miniimagenet", "mini"], include_str!("../assets/splits/miniimagenet.json")),
    (&["tiered-tiny"], include_str!("../assets/splits/tiered-tiny.json")),
    (&["tieredimagenet", "tiered"], include_str!("../assets/splits/tieredimagenet.json")),
];

/// The 350 classes of ImageNet that are neither in miniImageNet nor in TieredImageNet.
static IMAGENET_OUTLIERS: &str = include_str!("../assets/splits/imagenet-outliers.txt");

/// The 350 classes of ImageNet from which outliers are taken by default.
pub fn imagenet_outliers() -> impl Iterator<Item = &'static str> {
    IMAGENET_OUTLIERS.lines()
}

/// The classes of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The name, usually `train`, `val` or `test`.
    pub name: String,
    /// The names in the split: of classes, or of folders or superclasses above classes.
    pub classes: BTreeSet<String>,
}

impl Split {
    /// Reads the split `name` of a file. `path` is a file or the name of a built-in split file, such as `mini`.
    pub fn open(path: &Path, name: &str) -> Result<Self> {
        let splits = read_splits(path)?;
        Self::from_json(path, &splits, name)
    }

    /// Reads all splits of a file or of a built-in split file.
    pub fn all(path: &Path) -> Result<Vec<Self>> {
        let splits = read_splits(path)?;
        splits.keys().map(|name| Self::from_json(path, &splits, name)).collect()
    }

    /// The split `name` of a parsed split file.
    fn from_json(path: &Path, splits: &Map<String, Value>, name: &str) -> Result<Self> {
        let bad = |problem: String| Error::BadSplitFile { path: path.into(), problem };
        let Some(lists) = splits.get(name) else {
            let known = splits.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownSplit {
                origin: path.display().to_string(),
                split: name.into(),
                known,
            });
        };
        let mut classes = BTreeSet::new();
        collect_names("", lists, &mut classes)
            .map_err(|keys| bad(format!("'{name}{keys}' is not a list of names")))?;
        Ok(Split { name: name.into(), classes })
    }

    /// One split of the built-in drawings by Vinyals et al.: the first 1,200 characters are for training, of which five
    /// alphabets are for validation, and the rest for test.
    pub fn omniglot(name: &str) -> Result<Self> {
        if !["train", "val", "test"].contains(&name) {
            let known = "train, val, test".into();
            return Err(Error::UnknownSplit { origin: "omniglot".into(), split: name.into(), known });
        }
        let characters = Omniglot::embedded()?.characters().iter().enumerate();
        let of_split = characters.filter(|(index, character)| omniglot_split(*index, character) == name);
        let classes = of_split.map(|(_, character)| drawing_class_name(character)).collect();
        Ok(Split { name: name.into(), classes })
    }

    /// Whether a class belongs to the split, by its name or by that of a folder above it.
    /// [`Collection::keep_split`](crate::Collection::keep_split) also looks for its superclass.
    pub fn contains(&self, class: &str) -> bool {
        let mut folders = class.match_indices('/').map(|(end, _)| &class[..end]);
        self.classes.contains(class) || folders.any(|folder| self.classes.contains(folder))
    }

    /// Names of the split that match none of these classes.
    pub fn missing(&self, classes: &[String]) -> Vec<String> {
        let is_at_or_below = |name: &str, class: &str| {
            class.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let has_match = |name: &&String| classes.iter().any(|class| is_at_or_below(name, class));
        self.classes.iter().filter(|name| !has_match(name)).cloned().collect()
    }
}

/// The JSON members of a split file.
fn read_splits(path: &Path) -> Result<Map<String, Value>> {
    let bad = |problem: String| Error::BadSplitFile { path: path.into(), problem };
    match serde_json::from_str(&read_text(path)?) {
        Ok(Value::Object(splits)) => Ok(splits),
        Ok(_) => Err(bad("it is not a JSON object of splits".into())),
        Err(problem) => Err(bad(problem.to_string())),
    }
}

/// The text of a split file, or of a built-in one if `path` is its name.
fn read_text(path: &Path) -> Result<Cow<'static, str>> {
    let name = path.to_string_lossy();
    let built_in = BUILT_IN.iter().find(|(names, _)| names.contains(&name.as_ref()));
    // A folder `mini` is common; only a file of that name takes precedence over the built-in split.
    if let Some((_, text)) = built_in.filter(|_| !path.is_file()) {
        return Ok(Cow::Borrowed(text));
    }
    if !path.exists() && !name.contains(['.', '/']) {
        let known = BUILT_IN.map(|(names, _)| names[0]).join(", ");
        return Err(Error::UnknownSplitFile { given: name.into(), known });
    }
    let failed = |source| trueshot::Error::Read { path: path.into(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MAX_BYTES {
        return Err(Error::BadSplitFile { path: path.into(), problem: format!("it has {length} bytes") });
    }
    Ok(Cow::Owned(std::fs::read_to_string(path).map_err(failed)?))
}

/// The alphabets of Omniglot for validation.
const VALIDATION_ALPHABETS: [&str; 5] =
    ["Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)"];
/// The number of characters of Omniglot for training and validation, in the order of [`Omniglot::characters`].
const TRAINING_CHARACTERS: usize = 1200;

/// The split of the character with this index.
fn omniglot_split(index: usize, character: &omniglot::Character<'_>) -> &'static str {
    match index {
        TRAINING_CHARACTERS.. => "test",
        _ if VALIDATION_ALPHABETS.contains(&character.alphabet) => "val",
        _ => "train",
    }
}

/// Collects the names in nested lists, each after `prefix` and the keys of the objects around it; `Err` has the keys
/// that lead to a value that is neither a list of texts nor an object, such as `.Latin.character01`.
fn collect_names(
    prefix: &str,
    value: &Value,
    classes: &mut BTreeSet<String>,
) -> std::result::Result<(), String> {
    match value {
        Value::Array(names) => {
            for name in names {
                let name = name.as_str().ok_or_else(String::new)?;
                classes.insert(format!("{prefix}{name}"));
            }
            Ok(())
        }
        Value::Object(parts) => parts.iter().try_for_each(|(name, part)| {
            let is_half = prefix.is_empty() && OMNIGLOT_HALVES.contains(&name.as_str());
            let prefix = if is_half { String::new() } else { format!("{prefix}{name}/") };
            collect_names(&prefix, part, classes).map_err(|keys| format!(".{name}{keys}"))
        }),
        _ => Err(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The split `name` of a split file with this text.
    fn split(json: &str, name: &str) -> Result<Split> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("splits.json");
        std::fs::write(&path, json).unwrap();
        Split::open(&path, name)
    }

    #[test]
    fn lists_and_nested_lists_are_read() {
        let flat = split(r#"{"train": ["owl", "ant"], "test": ["bee"]}"#, "train").unwrap();
        assert_eq!(flat.classes.iter().collect::<Vec<_>>(), ["ant", "owl"]);
        let nested = r#"{"val": {"background": {"Latin": ["character01"]}, "evaluation": {}}}"#;
        assert!(split(nested, "val").unwrap().contains("Latin/character01"));
    }

    #[test]
    fn a_name_stands_for_all_classes_below_it_and_no_others() {
        let split = split(r#"{"test": ["fish", "owl"]}"#, "test").unwrap();
        assert!(split.contains("fish/trout") && split.contains("fish"));
        assert!(!split.contains("fishes") && !split.contains("trout/fish"));
        assert_eq!(split.missing(&["fish/trout".into(), "owls".into()]), ["owl"]);
    }

    #[test]
    fn errors_name_the_missing_split_or_the_invalid_value() {
        let problem = |json, name| split(json, name).unwrap_err().to_string();
        assert!(problem(r#"{"train": []}"#, "val").contains("no split 'val'"));
        assert!(
            problem(r#"{"train": {"a": {"b": 3}}}"#, "train").contains("'train.a.b' is not a list of names")
        );
        assert!(problem("[1]", "train").contains("not a JSON object of splits"));
        assert!(problem("{", "train").contains("not a valid split file"));
    }

    #[test]
    fn the_splits_of_omniglot_are_disjoint_and_have_all_characters() {
        let [train, val, test] = ["train", "val", "test"].map(|name| Split::omniglot(name).unwrap());
        assert_eq!([train.classes.len(), val.classes.len(), test.classes.len()], [1028, 172, 423]);
        assert!(train.classes.is_disjoint(&test.classes) && train.classes.is_disjoint(&val.classes));
        assert!(Split::omniglot("outliers").is_err());
    }

    #[test]
    fn the_splits_of_omniglot_are_the_published_ones() {
        let path = Path::new("../../../shared/data/splits/omniglot.json");
        if !path.exists() {
            eprintln!("SKIPPED: {} does not exist", path.display());
            return;
        }
        for name in ["train", "val", "test"] {
            assert_eq!(Split::open(path, name).unwrap(), Split::omniglot(name).unwrap());
        }
    }
}
