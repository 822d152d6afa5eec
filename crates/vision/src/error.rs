//! The errors of this crate. Their texts, which users see, are in the `#[error]` attributes; [`Error::hint`] adds what
//! to do.
//!
//! [`Unreadable`] is a problem of a single image: the image is listed and skipped, and the work fails only if too few
//! images are left. [`Error`] is a problem of the whole operation.

use std::path::PathBuf;

use crate::omniglot::OmniglotError;
use crate::pickle::PickleError;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the core library.
    #[error(transparent)]
    Core(#[from] trueshot::Error),
    /// The built-in drawings are missing or damaged.
    #[error(transparent)]
    Drawings(#[from] OmniglotError),
    /// The source contains no images.
    #[error("no images in {path}{}", .skipped.as_ref().map(|first| format!("; the first file skipped: {first}")).unwrap_or_default())]
    NoImages {
        /// The folder, archive or list.
        path: PathBuf,
        /// The first file that was skipped, with the reason.
        skipped: Option<String>,
    },
    /// A joint run (training of a backbone and a head together) has no backbone or no head to start from.
    #[error("a joint run starts from a trained backbone and a trained head, but one of them was not given")]
    NothingToStartFrom,
    /// A backbone to start from was trained on images of another size or colour.
    #[error("the backbone {path} takes {own}, but the run has {wanted}")]
    OtherImages {
        /// The backbone.
        path: PathBuf,
        /// Its images, such as `colour images of 84 px`.
        own: String,
        /// The images of the run.
        wanted: String,
    },
    /// The folders are splits, not classes.
    #[error("{path} contains {found}, which are splits rather than classes")]
    SplitFolders {
        /// The folder or archive.
        path: PathBuf,
        /// The names of the folders.
        found: String,
    },
    /// The source is of a kind that is not supported.
    #[error(
        "{path}: unknown kind of data set; supported: a folder of class folders, .zip, .tar, .tar.gz, .tgz, lists (.csv, .jsonl), and data sets in their published form (.pkl, .pickle, .npz, .npy, CIFAR-100's own files, 'omniglot')"
    )]
    UnknownSource {
        /// What was given.
        path: PathBuf,
    },
    /// A pickle that is malformed or calls functions.
    #[error("{path} is not a readable pickle: {problem}")]
    BadPickle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: PickleError,
    },
    /// A file that has the name of a published data set, but other contents.
    #[error("{path} is not a data set in its published form: {problem}")]
    BadForm {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A split was requested from a source without splits.
    #[error("{path} has no splits, so split '{split}' is unknown")]
    NoSplits {
        /// The source.
        path: PathBuf,
        /// The requested split.
        split: String,
    },
    /// A name that is neither a split file nor a built-in split.
    #[error("no split file {given}, and no built-in split has that name; built in: {known}")]
    UnknownSplitFile {
        /// What was given.
        given: String,
        /// The built-in splits.
        known: String,
    },
    /// An archive that unpacks to more than is allowed for its size.
    #[error("{path} unpacks to more than {allowed} bytes, the most allowed for a file of its size")]
    TooLarge {
        /// The archive.
        path: PathBuf,
        /// The allowed size in bytes.
        allowed: u64,
    },
    /// A file that is not a valid archive.
    #[error("{path} is not a valid archive: {problem}")]
    BadArchive {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A list of images with an invalid line.
    #[error("{path}, line {line}: {problem}")]
    BadList {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A file that is not a valid split file.
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
        /// The split file or data set.
        origin: String,
        /// The requested split.
        split: String,
        /// All splits.
        known: String,
    },
    /// None of the classes of a split is in the source.
    #[error("none of the {wanted} classes of split '{split}' is in {path}, which has {found}")]
    NoClassOfSplit {
        /// The source.
        path: PathBuf,
        /// The split.
        split: String,
        /// Number of classes of the split.
        wanted: usize,
        /// The first classes of the source.
        found: String,
    },
    /// A class has too few readable images.
    #[error("class '{class}' has {have} readable images, but {need} are needed")]
    TooFewImages {
        /// The class.
        class: String,
        /// Number of readable images.
        have: usize,
        /// Number of images that are needed.
        need: usize,
        /// The images that were skipped, of all classes.
        skipped: Vec<Skipped>,
    },
    /// The file is not a supported backbone.
    #[error("{path} is not a backbone: {problem}")]
    NotABackbone {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An ONNX model, or the options file next to it, that cannot be used.
    #[error("{path} cannot be used as a backbone: {problem}")]
    BadModel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What may help.
        hint: Option<String>,
    },
    /// A parameter is outside its allowed range.
    #[error("{what} is {given}; allowed: {allowed}")]
    OutOfRange {
        /// The name of the parameter.
        what: &'static str,
        /// What was given.
        given: String,
        /// What would be allowed.
        allowed: String,
    },
    /// The source has too few of the classes that can be outliers.
    #[error("{path} has {have} of the {asked} classes that may be outliers, but {need} are needed")]
    TooFewClasses {
        /// The source.
        path: PathBuf,
        /// Number of those classes in the source.
        have: usize,
        /// Number of classes that are needed.
        need: usize,
        /// Number of classes in the list of outliers.
        asked: usize,
    },
    /// A class in the list of outliers belongs to a split.
    #[error("class '{class}' is listed as an outlier but is in split '{split}' of {origin}{}", more(*.count))]
    OutlierOverlap {
        /// The first such class.
        class: String,
        /// Number of such classes.
        count: usize,
        /// The split.
        split: String,
        /// Where the split is from.
        origin: String,
    },
    /// Two classes whose names lead to the same folder.
    #[error(
        "classes '{first}' and '{second}' would be written to the same folder, '{folder}': rename one of them"
    )]
    SameFolder {
        /// The first class.
        first: String,
        /// The second class.
        second: String,
        /// The name of the folder.
        folder: String,
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
    /// What the user can do about the error, if known, with all options of the command line that help.
    pub fn hint(&self) -> Option<String> {
        self.hint_for(&|_| true)
    }

    /// What the user can do about the error, if known. An option of the command line such as `--pool` is named only if
    /// `has` returns true for it.
    pub fn hint_for(&self, has: &dyn Fn(&str) -> bool) -> Option<String> {
        match self {
            Error::Core(error) => error.hint_for(has),
            Error::Drawings(OmniglotError::NotBuiltIn) => Some(format!(
                "get the folder `crates/omniglot/assets` of the sources of trueshot, and set {} to its path",
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
            Error::NothingToStartFrom => Some(match has("--head") {
                true => "give both with --backbone and --head, or the model of an earlier joint run with --from; \
                         `trueshot train backbone`, `embed` and `train relabel` make them"
                    .into(),
                false => "give both, or the model of an earlier joint run".into(),
            }),
            Error::OtherImages { .. } if has("--size") => {
                Some("give the images that the backbone takes with --size and --colour".into())
            }
            Error::NoSplits { .. } if has("--split-file") => Some(
                "give its classes with --split-file: a JSON file, or cifar-fs, cub, fc100, miniimagenet, tiered-tiny or tieredimagenet"
                    .into(),
            ),
            Error::BadPickle { problem: PickleError::Call(_), .. } => Some(
                "do not open it with Python either, unless you trust its author".into(),
            ),
            Error::BadPickle { problem: PickleError::Truncated(_), .. } => Some("download the file again".into()),
            Error::UnknownSource { path } if is_packed(path) => {
                Some("unpack the archive first (tar xf), and give the folder".into())
            }
            Error::UnknownSource { path } if crate::source::is_image(&path.to_string_lossy()) => {
                Some("this is a single image; give the folder that contains the class folders".into())
            }
            Error::NoImages { skipped: Some(skipped), .. } if skipped.ends_with(&Unreadable::NoClass.to_string()) => {
                Some("give the folder that contains the class folders".into())
            }
            Error::TooLarge { .. } => Some("if you trust the archive, unpack it and give the folder".into()),
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

    /// Whether the error is wrong usage (exit status 2), as opposed to a failure (exit status 1).
    pub fn is_wrong_usage(&self) -> bool {
        match self {
            Error::Core(error) => error.is_wrong_usage(),
            Error::OutOfRange { .. } | Error::UnknownSplit { .. } | Error::UnknownSplitFile { .. } => true,
            _ => false,
        }
    }
}

/// The end of a message about the first of `count` classes.
fn more(count: usize) -> String {
    if count > 1 { format!(", and so are {} more", count - 1) } else { String::new() }
}

/// Whether a file is compressed in a way that is not supported, by its extension.
fn is_packed(path: &std::path::Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    matches!(extension.as_deref(), Some("xz" | "zst" | "bz2" | "7z" | "txz" | "tbz2"))
}

/// An image format that is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsupportedFormat {
    /// HEIC and HEIF, the photos of phones.
    Heic,
    /// AVIF.
    Avif,
    /// JPEG XL.
    JpegXl,
    /// JPEG 2000.
    Jpeg2000,
    /// SVG, drawings without pixels.
    Svg,
    /// Adobe Photoshop's own format.
    Photoshop,
    /// A raw file of a camera, of any maker.
    CameraRaw,
}

impl UnsupportedFormat {
    /// What to do with such a file, with a command that does it if there is a usual one.
    fn advice(self) -> &'static str {
        match self {
            UnsupportedFormat::Heic => "convert it to JPEG or PNG first (mogrify -format jpg *.heic)",
            UnsupportedFormat::Avif => "convert it to JPEG or PNG first (mogrify -format jpg *.avif)",
            UnsupportedFormat::JpegXl => "convert it to JPEG or PNG first (mogrify -format jpg *.jxl)",
            UnsupportedFormat::Svg => {
                "a drawing without pixels; convert it to PNG first (rsvg-convert -w 512 IN.svg -o OUT.png)"
            }
            UnsupportedFormat::Jpeg2000 | UnsupportedFormat::Photoshop | UnsupportedFormat::CameraRaw => {
                "convert it to JPEG or PNG first"
            }
        }
    }
}

impl std::fmt::Display for UnsupportedFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UnsupportedFormat::Heic => "HEIC",
            UnsupportedFormat::Avif => "AVIF",
            UnsupportedFormat::JpegXl => "JPEG XL",
            UnsupportedFormat::Jpeg2000 => "JPEG 2000",
            UnsupportedFormat::Svg => "SVG",
            UnsupportedFormat::Photoshop => "a Photoshop file",
            UnsupportedFormat::CameraRaw => "a camera's RAW file",
        })
    }
}

/// Why an image was skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The operating system refused to read the file.
    #[error("cannot be read: {0}")]
    File(String),
    /// The operating system refused to list a folder below the given one; the images in it are not known.
    #[error("a folder that cannot be read: {0}")]
    Folder(String),
    /// The name that a client sent with an image cannot be used.
    #[error("{0}")]
    BadName(String),
    /// The file extension is not that of an image.
    #[error("not an image by its file extension")]
    Name,
    /// The name of the file, or of a folder that contains it, is not valid UTF-8.
    #[error("its name is not valid UTF-8: rename it")]
    NotUtf8,
    /// A member of an archive whose path leads out of the archive.
    #[error("its path leads out of the archive")]
    OutsideArchive,
    /// A member of an archive that can only be read with a password.
    #[error("encrypted: unpack the archive with its password, and give the folder")]
    Encrypted,
    /// A member of an archive with a compression that is not supported.
    #[error(
        "compressed with {0}, supported are stored and deflated: unpack the archive, and give the folder"
    )]
    Compression(String),
    /// An image format that is not supported and must be converted first.
    #[error("{format} is not supported: {advice}", format = .0, advice = .0.advice())]
    ConvertFirst(UnsupportedFormat),
    /// A video.
    #[error("a video, not an image: extract single frames")]
    Video,
    /// A link to a folder that contains it.
    #[error("a link that leads back to a folder above it")]
    Loop,
    /// The file is not in a class folder.
    #[error("not in a class folder")]
    NoClass,
    /// The file is empty.
    #[error("empty file")]
    Empty,
    /// The contents are not in a supported image format.
    #[error("unknown image format; supported: BMP, GIF, JPEG, PNG, TIFF and WebP")]
    Format,
    /// The file is too large for an image.
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
    /// Too many pixels, or too many for the size of the file.
    #[error("{width} x {height} pixels are too many for {bytes} bytes")]
    TooManyPixels {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// Bytes of the file.
        bytes: usize,
    },
    /// More pixels than the limit that the caller set.
    #[error("{width} x {height} pixels are more than the {most} allowed here")]
    OverLimit {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// The limit.
        most: u64,
    },
    /// A side that is longer than the limit.
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
    /// The embedding contains a number that is not finite.
    #[error("its embedding contains {value} (dimension {place})")]
    NotFinite {
        /// Which number of the embedding, from 0.
        place: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// The embedding contains a number that is too large for the number format of the file.
    #[error("its embedding contains {value} (dimension {place}), which this precision cannot store")]
    TooLargeToStore {
        /// Which number of the embedding, from 0.
        place: usize,
        /// The number.
        value: String,
    },
    /// The network failed on this image.
    #[error("the backbone fails on it: {0}")]
    Network(String),
    /// The file is truncated.
    #[error("truncated")]
    Truncated,
    /// The decoder reported an error.
    #[error("{0}")]
    Decoder(String),
}

impl Unreadable {
    /// Whether this is an image whose file or contents cannot be used. False for a folder, for a file that was skipped
    /// because of its name or location, and for an image on which only the network failed.
    pub fn is_unreadable_image(&self) -> bool {
        use Unreadable::*;
        !matches!(
            self,
            Folder(_)
                | BadName(_)
                | Name
                | NotUtf8
                | OutsideArchive
                | Video
                | Loop
                | NoClass
                | NotFinite { .. }
                | TooLargeToStore { .. }
                | Network(_)
        )
    }
}

/// A skipped image and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The name of the image within the source.
    pub item: String,
    /// The class of the image, if it has one.
    pub class: Option<String>,
    /// Why the image was skipped.
    pub reason: Unreadable,
}

impl Skipped {
    /// A folder that the operating system refused to list.
    pub(crate) fn folder(item: String, error: &std::io::Error) -> Self {
        Skipped { item, class: None, reason: Unreadable::Folder(error.to_string()) }
    }
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
    fn a_folder_that_cannot_be_read_is_not_an_unreadable_image() {
        assert!(!Unreadable::Folder("permission denied".into()).is_unreadable_image());
        assert!(Unreadable::File("permission denied".into()).is_unreadable_image());
    }

    #[test]
    fn a_hint_names_the_options_that_a_command_has_and_no_others() {
        let (path, name) = (|| PathBuf::from("x"), || String::from("y"));
        let errors = [
            Error::SplitFolders { path: path(), found: name() },
            Error::NoSplits { path: path(), split: name() },
            Error::TooFewClasses { path: path(), have: 3, need: 4, asked: 5 },
            Error::OutlierOverlap { class: name(), count: 1, split: name(), origin: name() },
            Error::NoClassOfSplit { path: path(), split: name(), wanted: 1, found: name() },
            trueshot::Error::OutlierPoolTooSmall { have: 0, need: 5 }.into(),
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
