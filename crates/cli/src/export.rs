//! `trueshot export`: writes a classifier for use without trueshot, as an ONNX model or as an HTML page (`page`). Start
//! with [`run`].

mod page;

use std::path::{Path, PathBuf};

use clap::Args;
use trueshot::atomic::write_atomically;
use trueshot::predictor::Predictor;
use trueshot_vision::{Backbone, export};

use crate::backbone_argument::{BackboneChoice, defaults_of_classifier};
use crate::fit::open_classifier;
use crate::messages::{hinted, say};
use crate::output::check_writable;

/// Write a classifier for use without trueshot: an ONNX model, or a page that classifies in the browser
///
/// The extension of the output file selects the format. A page (.html) is one file that needs neither a server nor the
/// network: open it in a browser and choose, drop or paste an image, or use the camera.
///
/// An ONNX model (.onnx) takes decoded and resized pixels and returns the probability of each class (`probabilities`)
/// and the probability that the image shows none of them (`unknown`), as `trueshot predict` does. It contains the
/// backbone, the normalisation of colours and the classifier. Its metadata has the names of the classes (`classes`) and
/// how images are resized (`preprocessing`). If the classifier file does not name a backbone and none is given, the
/// model contains the classifier only and takes embeddings.
#[derive(Args)]
#[command(
    mut_args(defaults_of_classifier),
    after_help = "Examples:
  trueshot export animals.safetensors -o animals.html
  trueshot export animals.safetensors -o animals.onnx
  trueshot export animals.safetensors --backbone resnet.onnx -o animals.onnx
  trueshot export animals.safetensors --head-only -o animals-head.onnx"
)]
pub struct Arguments {
    /// Classifier file written by `trueshot fit`
    #[arg(value_name = "CLASSIFIER")]
    classifier: PathBuf,
    /// File to write (.onnx or .html)
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Export the classifier without its backbone: the model takes embeddings
    #[arg(long, conflicts_with = "backbone")]
    head_only: bool,
    #[command(flatten)]
    backbone: BackboneChoice,
}

/// The largest size of an ONNX file: lengths in protocol buffers have 31 bits.
const MAX_ONNX_BYTES: usize = i32::MAX as usize;

/// Runs `trueshot export`. A model without a backbone takes embeddings instead of images.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let output = &arguments.output;
    let format = ExportFormat::of(output)?;
    check_writable([output])?;
    if arguments.head_only && format == ExportFormat::Page {
        return Err(hinted(
            "a page needs a backbone, because it classifies images",
            "leave out --head-only, or write an .onnx file",
        ));
    }
    let image_hint = "give a classifier: a file written by `trueshot fit`";
    let predictor = open_classifier(&arguments.classifier, image_hint)?;
    let backbone = match arguments.head_only || !arguments.has_backbone(&predictor) {
        true => {
            if let Some((option, _)) = arguments.backbone.given().first() {
                anyhow::bail!("--{option} applies to a backbone, but the model is exported without one");
            }
            None
        }
        false => {
            let given = arguments.backbone.find()?;
            Some(arguments.backbone.find_for(&predictor, given, format.backbone_hint())?)
        }
    };
    let bytes = match (format, &backbone) {
        (ExportFormat::Page, backbone) => page::page(&predictor, backbone.as_ref(), output)?.into_bytes(),
        (ExportFormat::Onnx, Some(backbone)) => {
            export::onnx_model(&predictor, backbone)?.to_bytes("classifier")
        }
        (ExportFormat::Onnx, None) => predictor.to_graph().to_bytes("classifier"),
    };
    write(output, format, &bytes)?;
    print_summary(arguments, &predictor, backbone.as_ref(), format);
    Ok(())
}

/// The format of the output file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ExportFormat {
    Onnx,
    Page,
}

impl ExportFormat {
    /// The format that the extension of `output` selects.
    fn of(output: &Path) -> Result<Self, trueshot_vision::Error> {
        let has =
            |wanted: &str| output.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted));
        match (has("onnx"), has("html")) {
            (true, _) => Ok(ExportFormat::Onnx),
            (_, true) => Ok(ExportFormat::Page),
            _ => Err(trueshot_vision::Error::OutOfRange {
                what: "the output file",
                given: output.display().to_string(),
                allowed: "names that end in .onnx or .html".into(),
            }),
        }
    }

    /// The hint for a backbone that is not built in. A page cannot do without a backbone.
    fn backbone_hint(self) -> &'static str {
        match self {
            ExportFormat::Onnx => {
                "give the file of the backbone with --backbone, or export the classifier alone with --head-only"
            }
            ExportFormat::Page => "give the file of the backbone with --backbone",
        }
    }
}

impl Arguments {
    /// Whether the user gave a backbone or the classifier file names one.
    fn has_backbone(&self, predictor: &Predictor) -> bool {
        self.backbone.is_given() || predictor.embedder().is_some()
    }
}

/// Writes the file, completely or not at all.
fn write(path: &Path, format: ExportFormat, bytes: &[u8]) -> anyhow::Result<()> {
    anyhow::ensure!(
        format == ExportFormat::Page || bytes.len() <= MAX_ONNX_BYTES,
        "the model would have {} bytes; an ONNX file has at most {MAX_ONNX_BYTES}",
        bytes.len()
    );
    Ok(write_atomically(path, |file| file.write_all(bytes))?)
}

/// Prints what the file contains and its size.
fn print_summary(
    arguments: &Arguments,
    predictor: &Predictor,
    backbone: Option<&Backbone>,
    format: ExportFormat,
) {
    let bytes = std::fs::metadata(&arguments.output).map_or(0, |file| file.len());
    let description = match (format, backbone) {
        (ExportFormat::Page, _) => "as a page to open in a browser".into(),
        (ExportFormat::Onnx, Some(backbone)) => {
            let (size, channels) = (backbone.preprocessing().size, backbone.preprocessing().channels.count());
            format!("from images of {size} x {size} pixels (uint8 [batch, {size}, {size}, {channels}])")
        }
        (ExportFormat::Onnx, None) => format!("from embeddings (float32 [batch, {}])", predictor.dim()),
    };
    say!(
        "{}: {} classes by {}, {description} ({:.1} MB)",
        arguments.output.display(),
        predictor.classes().len(),
        predictor.method(),
        bytes as f64 / 1e6
    );
}
