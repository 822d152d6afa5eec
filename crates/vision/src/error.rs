//! Everything that can go wrong with pictures, one variant each.
//!
//! What is wrong with a single picture is an [`Unreadable`]: it is listed and skipped, and ends the work only
//! if too little is left. What is wrong with the whole request is an [`Error`].

use std::path::PathBuf;

use crate::omniglot::OmniglotError;
use crate::pickle::PickleError;

/// This library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a set of pictures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that the core does failed.
    #[error(transparent)]
    Core(#[from] trueshot::Error),
    /// The built-in drawings are not there, or not whole.
    #[error(transparent)]
    Drawings(#[from] OmniglotError),
    /// There is no picture at all.
    #[error("no images in {path}{}", .skipped.as_ref().map(|first| format!("; the first file skipped: {first}")).unwrap_or_default())]
    NoImages {
        /// The folder, archive or list.
        path: PathBuf,
        /// What was there instead.
        skipped: Option<String>,
    },
    /// The folders are splits, not classes.
    #[error("{path} contains {found}, which are splits rather than classes")]
    SplitFolders {
        /// The folder or archive.
        path: PathBuf,
        /// Their names.
        found: String,
    },
    /// Pictures in an archive that we do not unpack.
    #[error(
        "{path}: unknown kind of data set; supported: a folder, .tar, .tar.gz, .tgz, .csv, .jsonl, .pkl, .pickle, .npz, CIFAR-100's own files and 'omniglot'"
    )]
    UnknownSource {
        /// What was given.
        path: PathBuf,
    },
    /// A pickle that cannot or must not be read.
    #[error("{path} is not a readable pickle: {problem}")]
    BadPickle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: PickleError,
    },
    /// A file in the form of a published data set whose contents are something else.
    #[error("{path} is not a data set in its published form: {problem}")]
    BadForm {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A split is asked for of something that has none of its own.
    #[error("{path} has no splits, so split '{split}' is unknown")]
    NoSplits {
        /// The pictures.
        path: PathBuf,
        /// What was asked for.
        split: String,
    },
    /// A name that is neither a split file nor one that is built in.
    #[error("no split file {given}, and no built-in split has that name; built in: {known}")]
    UnknownSplitFile {
        /// What was given.
        given: String,
        /// What there is.
        known: String,
    },
    /// An archive that unpacks to more than its size can justify.
    #[error("{path} unpacks to more than {allowed} bytes, the most allowed for a file of its size")]
    TooLarge {
        /// The archive.
        path: PathBuf,
        /// What the gate lets through.
        allowed: u64,
    },
    /// An archive that is none.
    #[error("{path} is not a valid archive: {problem}")]
    BadArchive {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A list that cannot be used.
    #[error("{path}, line {line}: {problem}")]
    BadList {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A split file that is none.
    #[error("{path} is not a valid split file: {problem}")]
    BadSplitFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The split file has no such split.
    #[error("no split '{split}' in {origin}; it has: {known}")]
    UnknownSplit {
        /// Where it was looked for.
        origin: String,
        /// What was asked for.
        split: String,
        /// What there is.
        known: String,
    },
    /// None of a split's classes is there.
    #[error("none of the {wanted} classes of split '{split}' is in {path}, which has {found}")]
    NoClassOfSplit {
        /// The pictures.
        path: PathBuf,
        /// The split.
        split: String,
        /// How many classes it names.
        wanted: usize,
        /// The first classes there are.
        found: String,
    },
    /// A class lost too many pictures.
    #[error("class '{class}' has {have} readable images, but {need} are needed; {skipped} were skipped")]
    TooFewImages {
        /// The class.
        class: String,
        /// What is left.
        have: usize,
        /// What is needed.
        need: usize,
        /// How many were skipped in that class.
        skipped: usize,
    },
    /// The model is no backbone we know.
    #[error("{path} is not a backbone: {problem}")]
    NotABackbone {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An ONNX model, or what stands beside it, that cannot be used.
    #[error("{path} cannot be used as a backbone: {problem}")]
    BadModel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What may help.
        hint: Option<String>,
    },
    /// A number makes no sense.
    #[error("{what} is {given}; allowed: {allowed}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// What was given.
        given: String,
        /// What would be allowed.
        allowed: String,
    },
    /// Too few of the classes that could be outliers are there.
    #[error("{path} has {have} of the {asked} classes that may be outliers, but {need} are needed")]
    TooFewClasses {
        /// Where they were looked for.
        path: PathBuf,
        /// Those that are there.
        have: usize,
        /// Those that are needed.
        need: usize,
        /// Those that would do.
        asked: usize,
    },
    /// A class is to be an outlier and belongs to a split.
    #[error("class '{class}' is listed as an outlier but is in split '{split}' of {origin}{}", more(*.count))]
    OutlierOverlap {
        /// The first such class.
        class: String,
        /// How many there are.
        count: usize,
        /// The split.
        split: String,
        /// Where the split is from.
        origin: String,
    },
    /// The folder to write to is in use for something else.
    #[error("cannot write to {path}: {problem}")]
    BadOutput {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// What the user can do about it, where we know, with all options of the command line that help.
    pub fn hint(&self) -> Option<String> {
        self.hint_for(&|_| true)
    }

    /// What the user can do about it, where we know. Options of the command line are named only if `has` says that the
    /// program at hand has them, such as `--pool`.
    pub fn hint_for(&self, has: &dyn Fn(&str) -> bool) -> Option<String> {
        match self {
            Error::Core(error) => error.hint_for(has),
            Error::Drawings(OmniglotError::NotBuiltIn) => Some(format!(
                "get the folder `crates/vision/assets` of the sources of trueshot, and set {} to its path",
                crate::omniglot::ASSETS_VARIABLE
            )),
            Error::SplitFolders { .. } => {
                let ways = [
                    (true, "give one of these folders"),
                    (has("--split"), "select one with --split"),
                    (has("--pool"), "use the images of all splits with --pool"),
                ];
                let ways: Vec<&str> = ways.iter().filter(|(is_there, _)| *is_there).map(|(_, way)| *way).collect();
                Some(ways.join(", or "))
            }
            Error::NoSplits { .. } if has("--split-file") => Some(
                "give its classes with --split-file: a JSON file, or cifar-fs, cub, fc100, miniimagenet or tieredimagenet"
                    .into(),
            ),
            Error::BadPickle { problem: PickleError::Call(_), .. } => Some(
                "do not open it with Python either, unless you trust its author".into(),
            ),
            Error::BadPickle { problem: PickleError::CutOff(_), .. } => Some("download the file again".into()),
            Error::UnknownSource { path } if is_packed(path) => {
                Some("unpack the archive first (tar xf), and give the folder".into())
            }
            Error::TooFewClasses { have, .. } if *have >= 2 && has("--classes-count") => {
                Some(format!("use all of them with --classes-count {have}"))
            }
            Error::TooFewClasses { .. } => Some(
                "give the folder that contains one folder per class, such as n01514668; unpack archives first"
                    .into(),
            ),
            Error::OutlierOverlap { .. } => Some(match has("--exclude") {
                true => "remove it from the list, or name the splits to exclude with --exclude".into(),
                false => "remove it from the list".into(),
            }),
            Error::BadOutput { .. } => Some("give a new folder, or the options of the earlier run".into()),
            Error::NoClassOfSplit { .. } => Some(match has("--pool") {
                true => "the split file must name the class folders; with --pool they are searched in train/, val/ and test/".into(),
                false => "the split file must name the class folders".into(),
            }),
            Error::NotABackbone { .. } => Some(
                "a backbone is efficientnet-lite0, an .onnx image model, or a .safetensors file written by `trueshot train backbone`"
                    .into(),
            ),
            Error::BadModel { hint, .. } => hint.clone(),
            _ => None,
        }
    }

    /// Whether it was asked for wrongly, as opposed to asked for rightly and failed.
    pub fn is_wrong_usage(&self) -> bool {
        match self {
            Error::Core(error) => error.is_wrong_usage(),
            Error::OutOfRange { .. } | Error::UnknownSplit { .. } | Error::UnknownSplitFile { .. } => true,
            _ => false,
        }
    }
}

fn more(count: usize) -> String {
    if count > 1 { format!(", and so are {} more", count - 1) } else { String::new() }
}

fn is_packed(path: &std::path::Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    matches!(extension.as_deref(), Some("xz" | "zst" | "bz2" | "zip" | "7z" | "txz" | "tbz2"))
}

/// Why a picture was skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    File(String),
    /// The name that a client sent with it cannot be used.
    #[error("{0}")]
    BadName(String),
    /// Its name is not that of a picture.
    #[error("not an image by its file extension")]
    Name,
    /// Its name, or that of a folder it lies in.
    #[error("its name is not valid UTF-8: rename it")]
    NotUtf8,
    /// A kind of picture that must be converted before it can be read.
    #[error("{0} is not supported: convert it to JPEG or PNG first")]
    ConvertFirst(&'static str),
    /// A video.
    #[error("a video, not an image: extract single frames")]
    Video,
    /// A link to a folder that it lies in.
    #[error("a link that leads back to a folder above it")]
    Loop,
    /// It lies beside the class folders.
    #[error("not in a class folder")]
    NoClass,
    /// Nothing in it.
    #[error("empty file")]
    Empty,
    /// No known format.
    #[error("unknown image format; supported: BMP, GIF, JPEG, PNG, TIFF and WebP")]
    Format,
    /// More bytes than a picture has.
    #[error("{0} bytes are too many for an image")]
    FileSize(u64),
    /// A side of length zero.
    #[error("an image of {width} x {height} pixels")]
    NoPixels {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
    /// Too many pixels, or more than so few bytes can hold.
    #[error("{width} x {height} pixels are too many for {bytes} bytes")]
    TooManyPixels {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// Bytes of the file.
        bytes: usize,
    },
    /// More pixels than whoever asks allows.
    #[error("{width} x {height} pixels are more than the {most} allowed here")]
    OverLimit {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// The limit.
        most: u64,
    },
    /// A side longer than any camera's or scanner's.
    #[error("{width} x {height} pixels: no side may be longer than {longest}")]
    TooLong {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// The limit.
        longest: u32,
    },
    /// Decoding takes more memory than is allowed.
    #[error(
        "{width} x {height} pixels: decoding takes {} MiB of memory, and {} MiB are allowed; make it smaller",
        need.div_ceil(1 << 20), most >> 20
    )]
    OverMemory {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// Bytes that decoding takes.
        need: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// The network made a number of it that is none.
    #[error("its embedding contains {value} (dimension {place})")]
    NotFinite {
        /// Which number of the embedding, from 0.
        place: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// The network failed on it.
    #[error("the backbone fails on it: {0}")]
    Network(String),
    /// The file ends in the middle.
    #[error("truncated")]
    CutOff,
    /// The decoder gave up.
    #[error("{0}")]
    Decoder(String),
}

/// A picture that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its name within the source.
    pub item: String,
    /// The class it would have belonged to.
    pub class: Option<String>,
    /// Why.
    pub reason: Unreadable,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", trueshot::report::visible(&self.item), self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_the_options_that_a_command_has_and_no_others() {
        let (path, name) = (|| PathBuf::from("x"), || String::from("y"));
        let errors = [
            Error::SplitFolders { path: path(), found: name() },
            Error::NoSplits { path: path(), split: name() },
            Error::TooFewClasses { path: path(), have: 3, need: 4, asked: 5 },
            Error::OutlierOverlap { class: name(), count: 1, split: name(), origin: name() },
            Error::NoClassOfSplit { path: path(), split: name(), wanted: 1, found: name() },
            trueshot::Error::NoOutlierPool.into(),
        ];
        for error in errors {
            assert!(error.hint().unwrap().contains("--"), "{error}");
            assert!(!error.hint_for(&|_| false).unwrap_or_default().contains("--"), "{error}");
        }
        let splits = Error::SplitFolders { path: path(), found: name() };
        let hint = splits.hint_for(&|option| option == "--pool").unwrap();
        assert_eq!(hint, "give one of these folders, or use the images of all splits with --pool");
    }
}
