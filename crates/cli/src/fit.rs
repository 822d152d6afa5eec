//! `trueshot fit`: trains a classifier on labelled examples and writes it to one file. Start with [`run`].

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use trueshot::Embeddings;
use trueshot::audit::Audit;
use trueshot::embeddings::{Features, Items};
use trueshot::method::Registry;
use trueshot::predictor::Predictor;
use trueshot_vision::LabelledRows;

use crate::confirmed_labels::ConfirmedLabels;
use crate::messages::{hinted, say, shell_path};
use crate::output::{check_not_read, check_writable, safetensors_path};
use crate::progress::ProgressDisplay;
use crate::support_argument::SupportArgument;
use crate::threads::Threads;

/// Train a classifier on labelled examples, some of which may be wrongly labelled
///
/// Audits the examples first (see `trueshot audit`): mislabelled examples count for their estimated class, and the result of
/// the audit is stored in the file. The file contains everything that prediction needs, except a backbone that is not built
/// in.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot fit photos -o animals.safetensors
  trueshot fit embeddings.npz -m median -o animals.safetensors
  trueshot fit more-photos --add animals.safetensors -o animals.safetensors
  trueshot predict animals.safetensors new.jpg")]
pub struct Arguments {
    /// Write the classifier to FILE (.safetensors)
    #[arg(short, long, value_name = "FILE", value_parser = safetensors_path)]
    output: PathBuf,
    /// Fit with this method, which must not be transductive; `trueshot eval --list-methods` lists all
    #[arg(short, long, default_value = "relabel")]
    method: String,
    /// Add the examples and classes to those of an existing classifier; images are embedded with the backbone that it names
    #[arg(long, value_name = "CLASSIFIER")]
    add: Option<PathBuf>,
    #[command(flatten)]
    support: SupportArgument,
    #[command(flatten)]
    threads: Threads,
}

/// Runs `trueshot fit`: opens the examples, audits their labels, and fits the classifier.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_writable([&arguments.output])?;
    // `--add FILE -o FILE` replaces a classifier by one with more examples.
    check_not_read([&arguments.output], arguments.support.files())?;
    // A transductive method classifies all queries together, but a classifier must be able to classify single images.
    let method = Registry::default().parse(&arguments.method)?;
    method.check_not_transductive()?;
    let earlier = arguments.add.as_ref().map(Predictor::open).transpose()?;
    let confirmed = ConfirmedLabels::open(&arguments.support.support, None, false)?;
    arguments.threads.run(|| {
        let LabelledRows { embeddings, .. } = arguments.support.open_for(earlier.as_ref())?;
        let mut confirmed = confirmed.confirmed_rows(&embeddings);
        let data = match &earlier {
            Some(earlier) => {
                // The user confirms labels of the new examples only. The earlier examples come before them.
                confirmed.splice(0..0, vec![false; earlier.support().len()]);
                with_earlier_examples(earlier, &embeddings)?
            }
            None => embeddings,
        };
        let audit = audit_examples(&data, &confirmed)?;
        let predictor = Predictor::fit(data, &method, Some(&audit))?;
        predictor.write(&arguments.output)?;
        print_summary(arguments, &predictor, &audit);
        Ok(())
    })
}

/// Audits the labels of the examples; `confirmed` says for every row whether the user has confirmed its label.
fn audit_examples(data: &Embeddings, confirmed: &[bool]) -> anyhow::Result<Audit> {
    let progress = ProgressDisplay::counting(data.len() as u64, "examples");
    let audit = Audit::of(data).confirmed(confirmed).progress(&progress).run();
    progress.finish();
    Ok(audit?)
}

/// The examples of an earlier classifier, followed by new ones. Fails if their embeddings cannot be compared.
fn with_earlier_examples(earlier: &Predictor, new: &Embeddings) -> anyhow::Result<Embeddings> {
    let old = earlier.support();
    if let (Some(old_backbone), Some(new_backbone)) = (old.backbone(), new.backbone()) {
        anyhow::ensure!(
            old_backbone == new_backbone,
            hinted(
                format!(
                    "the classifier was trained on embeddings of {old_backbone}, but these are from {new_backbone}"
                ),
                "embed both with the same --backbone, --size, --fit and --resampling"
            )
        );
    }
    anyhow::ensure!(
        old.dim() == new.dim(),
        hinted(
            format!(
                "the classifier was trained on {}-dimensional embeddings, but these have {} dimensions",
                old.dim(),
                new.dim()
            ),
            "embed both with the same --backbone"
        )
    );
    let values = [old.all_rows(), new.all_rows()].concat();
    let (mut labels, mut names) = (Vec::new(), Vec::new());
    let rows = (0..old.len()).map(|row| (old, row)).chain((0..new.len()).map(|row| (new, row)));
    for (data, row) in rows {
        labels.push(data.classes()[data.labels()[row] as usize].clone());
        names.push(data.item(row).map_or_else(|| format!("row {row}"), str::to_string));
    }
    let data = Embeddings::from_features(Features::from_f32(values, old.dim()), labels, None)?;
    let data = data.with_items(Items::from_names(names))?;
    Ok(match old.backbone().or(new.backbone()) {
        Some(backbone) => data.with_backbone(backbone),
        None => data,
    })
}

/// Prints what the classifier contains, the warnings of the audit, and what to do next.
fn print_summary(arguments: &Arguments, predictor: &Predictor, audit: &Audit) {
    let support = predictor.support();
    let bytes = std::fs::metadata(&arguments.output).map_or(0, |file| file.len());
    say!(
        "{}: {} classes from {} examples by {} ({:.0} kB)",
        arguments.output.display(),
        predictor.classes().len(),
        support.len(),
        predictor.method(),
        bytes as f64 / 1e3
    );
    for warning in &audit.warnings {
        say!("warning: {warning}");
    }
    let backbone = arguments.support.backbone.as_given();
    let advice = match &arguments.add {
        None => {
            let labels = arguments.support.labels_as_given();
            format!("; see `trueshot audit {}{labels}{backbone}`", shell_path(&arguments.support.support))
        }
        // No command audits the earlier examples.
        Some(_) => String::new(),
    };
    match audit.counts.suspect {
        0 => {}
        1 => say!("1 label is suspect{advice}"),
        suspects => say!("{suspects} labels are suspect{advice}"),
    }
    if std::io::stderr().is_terminal() {
        say!("next: `trueshot predict {} INPUT{backbone}`", shell_path(&arguments.output));
    }
}

/// Opens a classifier; `image_hint` is the hint of the error if the file is an image.
pub fn open_classifier(path: &std::path::Path, image_hint: &str) -> anyhow::Result<Predictor> {
    let opened = Predictor::open(path).map_err(|problem| {
        match trueshot_vision::source::is_image(&path.to_string_lossy()) {
            true => hinted(format!("{} is an image, not a classifier", path.display()), image_hint),
            false => problem.into(),
        }
    });
    opened.with_context(|| format!("cannot use {} as a classifier", path.display()))
}
