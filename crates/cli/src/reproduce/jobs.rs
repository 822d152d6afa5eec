//! Jobs: commands of this program whose results other jobs need. A job is named by a hash of everything it depends on,
//! so tables share models and features, and an interrupted run finds what is done.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Changes when results of old would no longer be what the same command gives.
const CACHE_FORMAT: &str = "trueshot-reproduce/1";

/// A hash as text.
pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a job makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    Backbone,
    Features,
    Head,
    /// A model that looks at images itself.
    ImageModel,
    Evaluation,
    /// A image of a noisy support set.
    SupportSet,
    /// An image of where a head looks.
    Attention,
}

impl JobKind {
    /// Whether it is trained, and can go on where it stopped.
    pub fn is_trained(self) -> bool {
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

/// A word of a command line: text, and files that are named by what they hold.
#[derive(Debug, Clone, Default)]
pub struct CommandWord(Vec<WordPart>);

#[derive(Debug, Clone)]
enum WordPart {
    Text(String),
    Job(usize),
    /// A file or folder from outside, and what tells its contents.
    External(PathBuf, String),
}

impl CommandWord {
    pub fn text(text: impl Into<String>) -> Self {
        CommandWord(vec![WordPart::Text(text.into())])
    }

    /// The result of another job.
    pub fn result(job: usize) -> Self {
        CommandWord(vec![WordPart::Job(job)])
    }

    pub fn external(path: &Path, fingerprint: &str) -> Self {
        CommandWord(vec![WordPart::External(path.into(), fingerprint.into())])
    }

    pub fn concat(mut self, mut other: CommandWord) -> Self {
        self.0.append(&mut other.0);
        self
    }
}

/// Words of plain text, as a shell would take them apart where nothing is quoted.
pub fn plain_words(text: &str) -> impl Iterator<Item = CommandWord> + '_ {
    text.split_whitespace().map(CommandWord::text)
}

/// A command whose result is a file.
#[derive(Debug)]
pub struct Job {
    pub kind: JobKind,
    /// What it is, for people.
    pub label: String,
    /// A hash of all it depends on.
    pub key: String,
    /// Its file, below the folder of results.
    pub output: PathBuf,
    /// The jobs whose files it reads.
    pub needs: Vec<usize>,
    /// About how long it takes on two cores, in seconds.
    pub estimate: f64,
    words: Vec<CommandWord>,
}

/// All jobs, each once, those that are needed before those that need them.
#[derive(Debug, Default)]
pub struct Jobs {
    all: Vec<Job>,
    by_key: HashMap<String, usize>,
}

impl Jobs {
    pub fn all(&self) -> &[Job] {
        &self.all
    }

    /// Adds a job, or finds the same one; its number.
    pub fn add(&mut self, kind: JobKind, label: String, estimate: f64, words: Vec<CommandWord>) -> usize {
        let key = self.key(&words);
        if let Some(&known) = self.by_key.get(&key) {
            return known;
        }
        let pieces = || words.iter().flat_map(|word| &word.0);
        let mut needs: Vec<usize> = pieces()
            .filter_map(|piece| if let WordPart::Job(job) = piece { Some(*job) } else { None })
            .collect();
        needs.dedup();
        let output =
            PathBuf::from("cache").join(format!("{}-{}.{}", kind.name(), &key[..16], kind.extension()));
        let number = self.all.len();
        self.by_key.insert(key.clone(), number);
        self.all.push(Job { kind, label, key, output, needs, estimate, words });
        number
    }

    fn key(&self, words: &[CommandWord]) -> String {
        let mut hash = Sha256::new();
        hash.update(CACHE_FORMAT);
        hash.update(env!("CARGO_PKG_VERSION"));
        for word in words {
            hash.update([0]);
            for piece in &word.0 {
                match piece {
                    WordPart::Text(text) => hash.update(text),
                    WordPart::Job(job) => hash.update(&self.all[*job].key),
                    WordPart::External(_, fingerprint) => hash.update(fingerprint),
                }
            }
        }
        hex(hash)
    }

    /// The arguments of a job's command; paths of results are relative to their folder.
    pub fn arguments(&self, job: &Job) -> Vec<String> {
        let piece = |piece: &WordPart| match piece {
            WordPart::Text(text) => text.clone(),
            WordPart::Job(job) => self.all[*job].output.display().to_string(),
            WordPart::External(path, _) => path.display().to_string(),
        };
        let mut arguments: Vec<String> =
            job.words.iter().map(|word| word.0.iter().map(piece).collect()).collect();
        arguments.extend(["-o".into(), job.output.display().to_string()]);
        arguments
    }

    /// The command, for a shell.
    pub fn command(&self, job: &Job) -> String {
        let quoted = |word: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
            if word.chars().all(plain) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
        };
        let arguments = self.arguments(job);
        let words = std::iter::once("trueshot".to_string()).chain(arguments.iter().map(quoted));
        words.collect::<Vec<_>>().join(" ")
    }

    /// A job and all it needs, in order.
    pub fn with_needs(&self, wanted: &[usize]) -> Vec<usize> {
        let mut needed = vec![false; self.all.len()];
        let mut open = wanted.to_vec();
        while let Some(job) = open.pop() {
            if !std::mem::replace(&mut needed[job], true) {
                open.extend(&self.all[job].needs);
            }
        }
        (0..self.all.len()).filter(|&job| needed[job]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(jobs: &mut Jobs, words: Vec<CommandWord>) -> usize {
        jobs.add(JobKind::Head, String::new(), 1.0, words)
    }

    #[test]
    fn the_same_command_on_the_same_data_is_one_job() {
        let mut jobs = Jobs::default();
        let data = |fingerprint: &str| CommandWord::external(Path::new("/data"), fingerprint);
        let first = add(&mut jobs, vec![CommandWord::text("train"), data("a")]);
        assert_eq!(first, add(&mut jobs, vec![CommandWord::text("train"), data("a")]));
        assert_ne!(first, add(&mut jobs, vec![CommandWord::text("train"), data("b")]));
        let moved = vec![CommandWord::text("train"), CommandWord::external(Path::new("/moved"), "a")];
        assert_eq!(first, add(&mut jobs, moved), "where the data lies does not matter");
    }

    #[test]
    fn what_a_job_needs_is_part_of_its_name() {
        let mut jobs = Jobs::default();
        let (a, b) =
            (add(&mut jobs, vec![CommandWord::text("a")]), add(&mut jobs, vec![CommandWord::text("b")]));
        let on = |job| vec![CommandWord::text("x:model=").concat(CommandWord::result(job))];
        let (on_a, on_b) = (add(&mut jobs, on(a)), add(&mut jobs, on(b)));
        assert_ne!(on_a, on_b);
        assert_eq!(jobs.with_needs(&[on_b]), [b, on_b]);
        let job = &jobs.all()[on_b];
        assert!(
            jobs.command(job).starts_with(&format!("trueshot x:model={}", jobs.all()[b].output.display()))
        );
    }
}
