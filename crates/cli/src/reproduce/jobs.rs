//! Jobs: commands of this program, each with one result file, which other jobs can read. Start with [`Jobs::add`].
//!
//! The name of a result file contains a hash of everything the result depends on (the key of the job). Tables therefore
//! share models and features, and an interrupted run reuses finished results.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::messages::shell_word;

/// Part of every key. Change it when the same command gives another result than before, so that old results are
/// ignored.
const CACHE_FORMAT: &str = "trueshot-reproduce/1";

/// The digest in hexadecimal.
pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a job produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// A trained network that turns images into features.
    Backbone,
    /// The features of the images of a split.
    Features,
    /// A trained network on features (TraNFS or Relabel).
    Head,
    /// A model that takes images instead of features, such as MAML.
    ImageModel,
    /// The accuracies of methods, as JSON.
    Evaluation,
    /// An image of a noisy support set.
    SupportSet,
    /// An image of the attention of a head.
    Attention,
}

impl JobKind {
    /// Whether the job is a training run, which can be resumed.
    pub fn is_training(self) -> bool {
        matches!(self, JobKind::Backbone | JobKind::Head | JobKind::ImageModel)
    }

    fn name(self) -> &'static str {
        match self {
            JobKind::Backbone => "backbone",
            JobKind::Features => "features",
            JobKind::Head => "head",
            JobKind::ImageModel => "model",
            JobKind::Evaluation => "evaluation",
            JobKind::SupportSet => "support-set",
            JobKind::Attention => "attention",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            JobKind::Evaluation => "json",
            JobKind::SupportSet => "svg",
            JobKind::Attention => "png",
            _ => "safetensors",
        }
    }
}

/// One argument of a command line: text, result files and external files, concatenated.
#[derive(Debug, Clone, Default)]
pub struct Argument(Vec<ArgumentPart>);

#[derive(Debug, Clone)]
enum ArgumentPart {
    Text(String),
    /// The path of the result of the job with this index.
    Job(usize),
    /// The path of a file or folder that is not a result, and the fingerprint of its contents.
    External(PathBuf, String),
}

impl Argument {
    pub fn text(text: impl Into<String>) -> Self {
        Argument(vec![ArgumentPart::Text(text.into())])
    }

    /// The path of the result of another job.
    pub fn result(job: usize) -> Self {
        Argument(vec![ArgumentPart::Job(job)])
    }

    /// The path of a file or folder that is not a result. Only the fingerprint of its contents is part of a job's key,
    /// so it can be moved.
    pub fn external(path: &Path, fingerprint: &str) -> Self {
        Argument(vec![ArgumentPart::External(path.into(), fingerprint.into())])
    }

    /// Appends another argument to this one, without a space between them.
    pub fn concat(mut self, mut other: Argument) -> Self {
        self.0.append(&mut other.0);
        self
    }
}

/// Splits text into arguments at white space.
pub fn plain_arguments(text: &str) -> impl Iterator<Item = Argument> + '_ {
    text.split_whitespace().map(Argument::text)
}

/// A command whose result is a file.
#[derive(Debug)]
pub struct Job {
    pub kind: JobKind,
    /// A description for progress messages.
    pub label: String,
    /// The hash of everything the result depends on, 64 hexadecimal digits. The file name contains the first 16.
    pub key: String,
    /// The path of the result, relative to the output folder.
    pub output: PathBuf,
    /// The jobs whose results it reads, as indices in [`Jobs`].
    pub needs: Vec<usize>,
    /// The estimated duration on two cores, in seconds.
    pub estimate: f64,
    arguments: Vec<Argument>,
}

/// A list of distinct jobs. A job comes after the jobs whose results it reads; other code refers to jobs by index.
#[derive(Debug, Default)]
pub struct Jobs {
    all: Vec<Job>,
    by_key: HashMap<String, usize>,
}

impl Jobs {
    pub fn all(&self) -> &[Job] {
        &self.all
    }

    /// Adds a job, unless one with the same key exists, and returns its index.
    pub fn add(&mut self, kind: JobKind, label: String, estimate: f64, arguments: Vec<Argument>) -> usize {
        let key = self.key(&arguments);
        if let Some(&known) = self.by_key.get(&key) {
            return known;
        }
        let parts = arguments.iter().flat_map(|argument| &argument.0);
        let mut needs: Vec<usize> = parts
            .filter_map(|part| if let ArgumentPart::Job(job) = part { Some(*job) } else { None })
            .collect();
        // Most repetitions are next to each other; others do no harm.
        needs.dedup();
        let output =
            PathBuf::from("cache").join(format!("{}-{}.{}", kind.name(), &key[..16], kind.extension()));
        let index = self.all.len();
        self.by_key.insert(key.clone(), index);
        self.all.push(Job { kind, label, key, output, needs, estimate, arguments });
        index
    }

    /// Hashes the arguments, with the keys of other jobs for their results and fingerprints for external files.
    fn key(&self, arguments: &[Argument]) -> String {
        let mut hash = Sha256::new();
        hash.update(CACHE_FORMAT);
        hash.update(env!("CARGO_PKG_VERSION"));
        for argument in arguments {
            hash.update([0]);
            for part in &argument.0 {
                match part {
                    ArgumentPart::Text(text) => hash.update(text),
                    ArgumentPart::Job(job) => hash.update(&self.all[*job].key),
                    ArgumentPart::External(_, fingerprint) => hash.update(fingerprint),
                }
            }
        }
        hex(hash)
    }

    /// The arguments of a job's command; paths of results are relative to the output folder.
    pub fn arguments(&self, job: &Job) -> Vec<String> {
        let text = |part: &ArgumentPart| match part {
            ArgumentPart::Text(text) => text.clone(),
            ArgumentPart::Job(job) => self.all[*job].output.display().to_string(),
            ArgumentPart::External(path, _) => path.display().to_string(),
        };
        let mut arguments: Vec<String> =
            job.arguments.iter().map(|argument| argument.0.iter().map(text).collect()).collect();
        arguments.extend(["-o".into(), job.output.display().to_string()]);
        arguments
    }

    /// Whether the command of a job has the option `--device`.
    pub fn takes_device(&self, job: &Job) -> bool {
        let has = |flag: &str| self.arguments(job).iter().any(|argument| argument == flag);
        match job.kind {
            JobKind::Evaluation => has("--pictures"),
            // Augmented copies are embedded on the CPU.
            JobKind::Features => !has("--augment"),
            kind => kind.is_training(),
        }
    }

    /// The command of a job, quoted for a shell.
    pub fn command(&self, job: &Job) -> String {
        let arguments = self.arguments(job);
        let words = arguments.iter().map(|argument| shell_word(argument));
        let command = std::iter::once("trueshot".to_string()).chain(words);
        command.collect::<Vec<_>>().join(" ")
    }

    /// The given jobs and all jobs they depend on, in the order in which they can run (by index).
    pub fn with_needs(&self, wanted: &[usize]) -> Vec<usize> {
        let mut needed = vec![false; self.all.len()];
        let mut pending = wanted.to_vec();
        while let Some(job) = pending.pop() {
            // `replace` returns whether the job was visited before.
            if !std::mem::replace(&mut needed[job], true) {
                pending.extend(&self.all[job].needs);
            }
        }
        (0..self.all.len()).filter(|&job| needed[job]).collect()
    }

    /// The given jobs that are not done, and the jobs that are not done and whose results they need, in the order in
    /// which they can run (by index). The search does not go beyond finished jobs, so results that only they need may
    /// be missing.
    pub fn unfinished(&self, wanted: &[usize], is_done: impl Fn(&Job) -> bool) -> Vec<usize> {
        let mut visited = vec![false; self.all.len()];
        let mut unfinished = Vec::new();
        let mut pending = wanted.to_vec();
        while let Some(job) = pending.pop() {
            if !std::mem::replace(&mut visited[job], true) && !is_done(&self.all[job]) {
                pending.extend(&self.all[job].needs);
                unfinished.push(job);
            }
        }
        unfinished.sort_unstable();
        unfinished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(jobs: &mut Jobs, arguments: Vec<Argument>) -> usize {
        jobs.add(JobKind::Head, String::new(), 1.0, arguments)
    }

    #[test]
    fn the_same_command_on_the_same_data_is_one_job() {
        let mut jobs = Jobs::default();
        let data = |fingerprint: &str| Argument::external(Path::new("/data"), fingerprint);
        let first = add(&mut jobs, vec![Argument::text("train"), data("a")]);
        assert_eq!(first, add(&mut jobs, vec![Argument::text("train"), data("a")]));
        assert_ne!(first, add(&mut jobs, vec![Argument::text("train"), data("b")]));
        let moved = vec![Argument::text("train"), Argument::external(Path::new("/moved"), "a")];
        assert_eq!(first, add(&mut jobs, moved), "the key does not depend on the location of the data");
    }

    #[test]
    fn the_key_of_a_job_depends_on_the_jobs_it_reads() {
        let mut jobs = Jobs::default();
        let (a, b) = (add(&mut jobs, vec![Argument::text("a")]), add(&mut jobs, vec![Argument::text("b")]));
        let on = |job| vec![Argument::text("x:model=").concat(Argument::result(job))];
        let (on_a, on_b) = (add(&mut jobs, on(a)), add(&mut jobs, on(b)));
        assert_ne!(on_a, on_b);
        assert_eq!(jobs.with_needs(&[on_b]), [b, on_b]);
        assert_eq!(jobs.unfinished(&[on_a, on_b], |job| job.key == jobs.all()[a].key), [b, on_a, on_b]);
        let is_done = |job: &Job| job.key == jobs.all()[on_b].key;
        assert!(jobs.unfinished(&[on_b], is_done).is_empty(), "only a finished job needs the result of {b}");
        let job = &jobs.all()[on_b];
        assert!(
            jobs.command(job).starts_with(&format!("trueshot x:model={}", jobs.all()[b].output.display()))
        );
    }
}
