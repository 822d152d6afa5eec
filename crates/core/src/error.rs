//! The errors of the library: [`Error`].
//!
//! A message says what failed, the value given and the values allowed, in lower case without a full stop. What to do
//! about it is a [`hint`](Error::hint), which the command line prints on its own line.
//!
//! Words in the messages: an episode is a small classification problem drawn from the data, with `ways` classes,
//! `shots` labelled items per class (the support set) and `queries` items per class to classify. Noise replaces some of
//! the labelled items by wrong ones: from the noise pool (other items of the episode's classes) or from outliers (items
//! of other classes).

use std::path::PathBuf;

use crate::visible::counted;

/// Result type of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file cannot be written; no part of it is left behind.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The contents of a file violate its format.
    #[error("{path} is not a valid {format} file: {problem}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The format it was read as.
        format: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The contents of a file do not match the checksum that was written with them.
    #[error("{path} is damaged: the checksum of {what} does not match")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The part whose checksum differs.
        what: String,
    },
    /// The file claims to unpack to more data than is allowed for its size.
    #[error(
        "{path} claims to unpack to {claimed} bytes, more than the {allowed} allowed for a file of its size"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The claimed size in bytes.
        claimed: u64,
        /// The allowed size in bytes.
        allowed: u64,
    },
    /// The extension of the file is not that of a supported format.
    #[error(
        "{path}: unknown format; supported: .safetensors, .npy, .npz, .parquet, .arrow, .feather and .ipc"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The labels that belong to a `.npy` file of features cannot be found.
    #[error("no labels next to {path}; looked for {looked_for}")]
    NoLabels {
        /// The file of features.
        path: PathBuf,
        /// The file names that were tried.
        looked_for: String,
    },
    /// A feature is NaN or infinite.
    #[error("feature in row {row}, column {column} is {value}; every feature must be finite")]
    NotFinite {
        /// The row, from 0.
        row: usize,
        /// The column, from 0.
        column: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A feature whose square would overflow.
    #[error("feature in row {row}, column {column} is {value:e}; allowed: numbers up to {largest:e}")]
    LargeFeature {
        /// The row, from 0.
        row: usize,
        /// The column, from 0.
        column: usize,
        /// The feature.
        value: f32,
        /// The largest that is allowed.
        largest: f32,
    },
    /// The numbers of labels and of rows differ.
    #[error("{features} rows of features but {labels} labels")]
    LengthMismatch {
        /// Rows of features.
        features: usize,
        /// Labels.
        labels: usize,
    },
    /// A label is not an index into the list of classes.
    #[error("label {label} in row {row} is not a class; there are {classes} classes, counted from 0")]
    LabelOutOfRange {
        /// The row, from 0.
        row: usize,
        /// Its label.
        label: i64,
        /// How many classes there are.
        classes: usize,
    },
    /// The list of classes has a name twice.
    #[error("class '{class}' is twice in the list of classes")]
    RepeatedClass {
        /// The name.
        class: String,
    },
    /// The data has no rows.
    #[error("the data has no rows")]
    Empty,

    /// Fewer than two classes have items, which is too few for an audit and for a classifier.
    #[error("an audit needs at least two classes, but the data has one")]
    OneClass,

    /// A repair plan or an undo file of [`crate::repair`] that cannot be used.
    #[error("{path}{}: {problem}", at_line(*.line))]
    BadPlan {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 if the problem concerns the whole file.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The collection to repair has changed since it was audited.
    #[error("{root} has changed since the audit: {problem}")]
    CollectionChanged {
        /// The collection.
        root: PathBuf,
        /// What changed.
        problem: String,
    },

    /// Another process works on the same folder or output.
    #[error("{path} is in use by {holder}")]
    Locked {
        /// The folder or output.
        path: PathBuf,
        /// The process that holds the lock, and its command.
        holder: String,
    },

    /// The work was stopped through its [`Progress`](crate::progress::Progress).
    #[error("interrupted")]
    Interrupted,

    /// The data has fewer classes than an episode needs.
    #[error("{ways} ways requested, but the data has {classes} classes")]
    TooFewClasses {
        /// Classes per episode.
        ways: usize,
        /// Classes in the data.
        classes: usize,
    },
    /// A class has too few items for an episode.
    #[error(
        "class '{class}' has {}, but {}, {shots} for the noise pool and {} need {need}",
        counted(*.have, "item", "items"),
        counted(*.shots, "shot", "shots"),
        counted(*.queries, "query", "queries")
    )]
    TooFewItems {
        /// The smallest class.
        class: String,
        /// Its items.
        have: usize,
        /// Shots per class (the most, if they vary).
        shots: usize,
        /// Queries per class.
        queries: usize,
        /// `2 * shots + queries`.
        need: usize,
    },
    /// The format is known, but its reader was left out when the library was compiled.
    #[error(
        "{path} cannot be read: this build of trueshot has no support for its format (feature '{feature}')"
    )]
    FeatureNotBuilt {
        /// The file.
        path: PathBuf,
        /// The Cargo feature that adds the reader.
        feature: &'static str,
    },
    /// A noise setting that is not of the form `TYPE=LEVEL,..`.
    #[error("noise '{text}': {problem}")]
    BadNoise {
        /// The text of the setting.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A custom noise type failed, or gave labels that are not allowed.
    #[error("noise '{noise}', episode {episode}: {problem}")]
    NoiseFailed {
        /// The name of the noise type.
        noise: String,
        /// The number of the episode, from 0.
        episode: u64,
        /// What is wrong.
        problem: String,
    },
    /// A custom method failed. An evaluation leaves the method out and keeps the results of the others.
    #[error("method '{method}' failed in episode {episode}: {problem}")]
    MethodFailed {
        /// The label of the method.
        method: String,
        /// The number of the episode, from 0.
        episode: u64,
        /// What is wrong.
        problem: String,
    },
    /// Two methods of one evaluation have the same label.
    #[error("method '{label}' is given twice")]
    MethodTwice {
        /// The label.
        label: String,
    },
    /// The baseline of an evaluation is not one of its methods.
    #[error("baseline '{baseline}' is not among the methods: {known}")]
    UnknownBaseline {
        /// The label of the baseline.
        baseline: String,
        /// The labels of the methods.
        known: String,
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
    /// No support set with this noise level satisfies the rules of [`crate::noise`]: the right class must stay the most
    /// frequent one under every label.
    #[error(
        "{kind} noise of {percent} % is impossible with {ways} ways and {}; possible: {valid}",
        shots_in_words(.shots)
    )]
    ImpossibleNoise {
        /// The name of the noise type.
        kind: &'static str,
        /// The level in percent.
        percent: f64,
        /// Classes per episode.
        ways: usize,
        /// Shots per class, as text: a number, or a range such as `1-10`.
        shots: String,
        /// The levels for which a valid draw exists.
        valid: String,
    },
    /// The rows of the outlier pool do not have the dimension of the data: another network (backbone) computed them.
    #[error("the outlier pool has {pool} dimensions, the data {data}")]
    OutlierDimension {
        /// Dimensions of the pool.
        pool: usize,
        /// Dimensions of the data.
        data: usize,
    },
    /// There are fewer outliers than one episode needs.
    #[error("there are {have} outliers to draw from, but one episode needs {need}")]
    OutlierPoolTooSmall {
        /// Items of the outlier pool, or of the classes of the data that are not in an episode.
        have: usize,
        /// Items an episode replaces.
        need: usize,
    },

    /// There is no method with this name.
    #[error("unknown method '{name}'; known: {known}")]
    UnknownMethod {
        /// The given name.
        name: String,
        /// All names.
        known: String,
        /// The nearest name.
        nearest: Option<String>,
    },
    /// The method has no such parameter.
    #[error("method '{method}' has no parameter '{name}'; it has: {known}")]
    UnknownParameter {
        /// The method.
        method: &'static str,
        /// The given name.
        name: String,
        /// All parameters of the method.
        known: String,
        /// The nearest name.
        nearest: Option<String>,
    },
    /// The value of a parameter is not allowed.
    #[error("method '{method}': {name}={given} is not allowed; {name} is {allowed}")]
    BadParameter {
        /// The method.
        method: &'static str,
        /// The parameter.
        name: &'static str,
        /// What was given.
        given: String,
        /// What would be allowed.
        allowed: &'static str,
    },
    /// A method that needs a model is used without one.
    #[error("method '{method}' needs a model: {method}:model=FILE")]
    NeedsModel {
        /// The method.
        method: &'static str,
    },
    /// A method that needs the true labels is used without them.
    #[error(
        "method '{method}' needs the true labels, which are known only in experiments with injected noise"
    )]
    NeedsTruth {
        /// The method.
        method: &'static str,
    },

    /// A file contains a model of another kind.
    #[error("{path} is a model of kind '{found}', not '{wanted}'")]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The kind of the model in the file.
        found: String,
        /// The expected kind.
        wanted: &'static str,
    },
    /// A safetensors file of trueshot contains something else than what is read from it.
    #[error("{path} contains {found}, not {wanted}")]
    OtherContents {
        /// The file.
        path: PathBuf,
        /// What the file contains, such as "embeddings".
        found: &'static str,
        /// What it should contain.
        wanted: &'static str,
    },
    /// The features do not have the dimension that the model was trained on.
    #[error("the features have {features} dimensions, but the model in {path} was trained on {model}")]
    ModelDimension {
        /// The model's file.
        path: PathBuf,
        /// Dimensions of the features.
        features: usize,
        /// Dimension that the model was trained on.
        model: usize,
    },
    /// The rows do not have the dimension of the classifier.
    #[error("the rows have {rows} dimensions, but the classifier was trained on {classifier}")]
    ClassifierDimension {
        /// Dimensions of the rows.
        rows: usize,
        /// Dimension of the classifier.
        classifier: usize,
    },
    /// The classifier of this method cannot be saved to a file.
    #[error("a classifier of method '{method}' cannot be saved to a file")]
    CannotBeSaved {
        /// The method.
        method: String,
    },
    /// A transductive method has no classifier for single rows.
    #[error(
        "method '{method}' is transductive: it classifies all queries of a task together, so there is no classifier that \
         could be fitted in advance"
    )]
    Transductive {
        /// The method.
        method: String,
    },
    /// The rows of a task do not have the dimension of the rows whose mean is subtracted from them.
    #[error(
        "the rows have {features} dimensions, but those of {path}, whose mean is subtracted, have {centre}"
    )]
    CentreDimension {
        /// The file whose mean is subtracted.
        path: PathBuf,
        /// Dimensions of the rows.
        features: usize,
        /// Dimensions of the rows of the file.
        centre: usize,
    },
    /// The classifier of this method has no prototypes.
    #[error("method '{method}' has no prototypes; protonet, median, cosine, rnnp and relabel do")]
    NoPrototypes {
        /// The method.
        method: String,
    },
    /// The task has more classes than the model (TraNFS, which has one learned class token per class) supports.
    #[error("the task has {classes} classes, but the model in {path} supports {model}")]
    TooManyClasses {
        /// The model's file.
        path: PathBuf,
        /// Classes of the task.
        classes: usize,
        /// Maximum number of classes of the model.
        model: usize,
    },

    /// Files of one training have features of different dimensions.
    #[error("one file has features of {first} dimensions, another of {other}")]
    DimensionsDiffer {
        /// Dimensions of the first file.
        first: usize,
        /// Dimensions of another.
        other: usize,
    },

    /// A configuration cannot be read.
    #[error("cannot use the configuration{}: {problem}", .path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    BadConfiguration {
        /// The file, if it comes from one.
        path: Option<PathBuf>,
        /// What is wrong with it.
        problem: String,
    },
    /// A configuration has no such key.
    #[error("unknown key '{key}' in the configuration; known: {known}")]
    UnknownKey {
        /// What was given.
        key: String,
        /// All keys of the section.
        known: String,
        /// The nearest key.
        nearest: Option<String>,
    },
    /// A term of the loss or a parameter became infinite or NaN in training.
    #[error("training diverged in step {step}: {what} is {value}")]
    Diverged {
        /// The step, from 1.
        step: u64,
        /// A term of the loss, or a tensor.
        what: String,
        /// NaN or an infinity.
        value: f64,
    },
    /// The GPU that a model is trained on, or that embeds images, failed.
    #[error("{message}")]
    Gpu {
        /// What failed.
        message: String,
        /// What the user can do about it.
        hint: String,
        /// The checkpoint that the run can be resumed from, if it failed during a run.
        checkpoint: Option<PathBuf>,
    },
    /// A checkpoint was written with other settings.
    #[error("{path} was written with {key} = {then}, but now {key} = {now}")]
    OtherConfiguration {
        /// The checkpoint.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// Its value in the checkpoint.
        then: String,
        /// Its value in the current configuration.
        now: String,
    },
    /// Training would overwrite the files of an earlier run.
    #[error("{path} already exists")]
    AlreadyThere {
        /// The model or the checkpoint.
        path: PathBuf,
        /// Whether the earlier run can be resumed.
        unfinished: bool,
    },

    /// A manifest (a file that lists episodes) was drawn from other data.
    #[error("the manifest was drawn from {what} with fingerprint {expected}, but this data has {found}")]
    ManifestOfOtherData {
        /// Which data: the embeddings or the outlier pool.
        what: &'static str,
        /// The fingerprint in the manifest.
        expected: String,
        /// The fingerprint of the data at hand.
        found: String,
    },
    /// A line of a manifest cannot be used.
    #[error("{path}, line {line}: {problem}")]
    BadManifest {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// A number or range of shots with its noun: `1 shot`, `1-10 shots`.
fn shots_in_words(shots: &str) -> String {
    format!("{shots} {}", if shots == "1" { "shot" } else { "shots" })
}

fn at_line(line: usize) -> String {
    if line > 0 { format!(", line {line}") } else { String::new() }
}

impl Error {
    /// Whether the error is wrong usage (exit status 2), as opposed to a failure (exit status 1).
    pub fn is_wrong_usage(&self) -> bool {
        use Error::*;
        matches!(
            self,
            UnknownMethod { .. }
                | UnknownParameter { .. }
                | BadParameter { .. }
                | NeedsModel { .. }
                | OutOfRange { .. }
                | BadNoise { .. }
                | MethodTwice { .. }
                | UnknownBaseline { .. }
                | BadConfiguration { .. }
                | UnknownKey { .. }
        )
    }

    /// What the user can do about the error, if known, with all options of the command line that help.
    pub fn hint(&self) -> Option<String> {
        self.hint_for(&|_| true)
    }

    /// What the user can do about the error, if known. An option of the command line such as `--outliers` is named only
    /// if `has` returns true for it, because a command must not suggest an option that it does not have.
    pub fn hint_for(&self, has: &dyn Fn(&str) -> bool) -> Option<String> {
        match self {
            Error::TooFewItems { have, shots, .. } => Some(match have.checked_sub(shots.saturating_mul(2)) {
                Some(0) if *shots > 1 => "use fewer shots".into(),
                Some(0) => "every class needs more items".into(),
                Some(largest) => format!("the largest number of queries that fits is {largest}"),
                None => {
                    format!("no number of queries fits; the largest number of shots for this class is {}", have / 2)
                }
            }),
            Error::CollectionChanged { .. } => {
                Some("audit it again and use the new plan; nothing was overwritten".into())
            }
            Error::Locked { .. } => {
                Some("nothing was changed; try again when that process has finished".into())
            }
            Error::FeatureNotBuilt { .. } => Some("convert the file to .safetensors or .npy".into()),
            Error::MethodTwice { .. } => Some("rename one of them with as=NAME".into()),
            Error::TooFewClasses { classes, .. } => Some(format!("use at most {classes} ways")),
            Error::UnknownMethod { nearest: Some(name), .. }
            | Error::UnknownParameter { nearest: Some(name), .. } => Some(format!("did you mean '{name}'?")),
            Error::UnknownKey { nearest: Some(key), .. } => Some(format!("did you mean '{key}'?")),
            Error::OtherModel { found, .. } if ["tranfs", "relabel", "maml"].contains(&found.as_str()) => {
                let option = ["--methods", "--method"].into_iter().find(|&option| has(option))?;
                Some(format!("use it with {option} {found}:model=FILE"))
            }
            Error::ImpossibleNoise { .. } if has("--noise") => Some(match has("--val-noise") {
                true => "give other levels with --noise and --val-noise".into(),
                false => "give other levels with --noise".into(),
            }),
            Error::DimensionsDiffer { .. } => Some(match has("--item-width") {
                true => {
                    "embed all of them with the same backbone; only relabel without --item-width accepts different ones"
                        .into()
                }
                false => "embed all of them with the same backbone".into(),
            }),
            Error::ModelDimension { .. } => Some(
                "a head works with one backbone: embed the images with the backbone it was trained with, \
                 or train a head on these features"
                    .into(),
            ),
            Error::Transductive { .. } => Some(match has("--method") {
                true => "use --method relabel, simpleshot or protonet; `trueshot eval` evaluates transductive methods"
                    .into(),
                false => "use relabel, simpleshot or protonet; an evaluation accepts transductive methods".into(),
            }),
            Error::CentreDimension { .. } => Some("embed both with the same backbone".into()),
            Error::TooManyClasses { model, .. } => {
                Some(format!("use at most {model} ways, or train a model for more classes"))
            }
            Error::Diverged { .. } => Some(match has("--rate") && has("--warm-up") {
                true => "the last checkpoint is intact; a lower --rate or a longer --warm-up may help".into(),
                false => "the last checkpoint is intact; a lower rate or a longer warm-up may help".into(),
            }),
            Error::Gpu { hint, checkpoint: None, .. } => Some(hint.clone()),
            Error::Gpu { hint, checkpoint: Some(path), .. } => {
                let resume = match has("--resume") && has("--device") {
                    true => "resume with --resume, on the CPU with --resume --device cpu",
                    false => "resume that run, on the CPU if the GPU does not work again",
                };
                Some(format!("{hint}; the checkpoint {} is intact: {resume}", path.display()))
            }
            Error::OtherConfiguration { .. } => Some(match has("--overwrite") {
                true => "resume with the settings of the run, or start again with --overwrite".into(),
                false => "resume with the settings of the run, or choose another name".into(),
            }),
            Error::AlreadyThere { unfinished: true, .. } => {
                Some(match has("--resume") && has("--overwrite") {
                    true => "resume with --resume, or start again with --overwrite".into(),
                    false => "resume that run, or overwrite it".into(),
                })
            }
            Error::AlreadyThere { unfinished: false, .. } => Some(match has("--overwrite") {
                true => "choose another name, or overwrite it with --overwrite".into(),
                false => "choose another name, or overwrite it".into(),
            }),
            Error::OutlierPoolTooSmall { .. } => Some(match has("--outliers") {
                true => "outliers are items of classes that are not in the episode: use fewer classes per episode, or \
                         give items of other classes with --outliers"
                    .into(),
                false => "outliers are items of classes that are not in the episode: use fewer classes per episode, or \
                          give items of other classes as outliers"
                    .into(),
            }),
            Error::OutlierDimension { .. } => {
                Some("embed the outliers with the same backbone as the data".into())
            }
            Error::NoLabels { .. } => Some(match has("--labels-of-rows") {
                true => {
                    "save the labels under one of these names, or give their file with --labels-of-rows".into()
                }
                false => "save the labels under one of these names".into(),
            }),
            Error::UnknownFormat { path } if path.is_dir() => {
                Some("`trueshot embed` computes the embeddings of a folder of images".into())
            }
            Error::NotFinite { .. } => Some("`trueshot inspect` counts all such values".into()),
            Error::ManifestOfOtherData { .. } => {
                Some("replay a manifest on the file it was written from, or draw new episodes".into())
            }
            Error::Damaged { .. } => Some(
                "the file was changed after it was written; copy it again from its source, or create it again"
                    .into(),
            ),
            Error::TooLarge { .. } => Some("convert the file to .safetensors, which is read in place".into()),
            _ => None,
        }
    }
}

#[cfg(feature = "cuda")]
impl From<trueshot_cuda::Error> for Error {
    fn from(error: trueshot_cuda::Error) -> Self {
        use trueshot_cuda::Error as Gpu;
        let hint = match &error {
            Gpu::OutOfMemory { .. } => {
                "use smaller images or fewer ways, shots, queries or episodes per step, or the CPU; \
                 other programs may be using the GPU"
            }
            Gpu::TooLarge { .. } => "use the CPU, or a smaller network, smaller images or smaller episodes",
            Gpu::WeightRange(_) => "use the CPU",
            Gpu::Lost(_) => "nvidia-smi shows whether the GPU works",
            _ => "use the CPU, or install the newest NVIDIA driver",
        };
        Error::Gpu { message: error.to_string(), hint: hint.into(), checkpoint: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_about_a_model_of_another_kind_names_an_option_that_the_command_has() {
        let error = Error::OtherModel { path: "x".into(), found: "relabel".into(), wanted: "tranfs" };
        let hint = |option: &'static str| error.hint_for(&|known: &str| known == option);
        assert_eq!(hint("--method").unwrap(), "use it with --method relabel:model=FILE");
        assert_eq!(hint("--from"), None);
    }

    #[test]
    fn without_a_command_line_no_hint_names_an_option() {
        let path = || PathBuf::from("x");
        let errors = [
            Error::NoLabels { path: path(), looked_for: "y.npy".into() },
            Error::DimensionsDiffer { first: 1, other: 2 },
            Error::TooManyClasses { path: path(), classes: 9, model: 5 },
            Error::Diverged { step: 1, what: "loss".into(), value: f64::NAN },
            Error::OtherConfiguration { path: path(), key: "k".into(), then: "1".into(), now: "2".into() },
            Error::AlreadyThere { path: path(), unfinished: true },
            Error::AlreadyThere { path: path(), unfinished: false },
            Error::Transductive { method: "tim".into() },
            Error::Gpu { message: "lost".into(), hint: "look".into(), checkpoint: Some(path()) },
        ];
        for error in errors {
            let hint = error.hint_for(&|_| false).unwrap();
            assert!(!hint.contains("--"), "{error}: {hint}");
            let has_rate_only = error.hint_for(&|option| option == "--rate").unwrap();
            assert!(!has_rate_only.contains("--"), "{error}: {has_rate_only}");
        }
    }
}
