//! The options that select a backbone and its cache, shared by all commands that embed images. A backbone is the
//! network that turns an image into an embedding, together with its preprocessing. A command
//! first calls [`BackboneArgument::find`], which reports wrong options before any image is listed, then
//! [`BackboneArgument::find_default`] if the user gave no backbone, then [`BackboneArgument::embedder`].
//!
//! `export` flattens [`BackboneChoice`] alone, because it embeds nothing; all other commands use [`BackboneArgument`],
//! which adds the cache and the device.

use std::path::{Path, PathBuf};

use clap::{Arg, Args, ValueEnum};
use trueshot::predictor::Predictor;
use trueshot_vision::backbone::{BackboneOptions, GPU_MIN_IMAGES};
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::{Backbone, Collection, Embedder, Resampling};

use crate::device_argument::DeviceArgument;
use crate::images_argument::FitArgument;
use crate::messages::{hinted, say, shell_word};

/// Options for embedding images.
#[derive(Args)]
#[command(next_help_heading = "Embedding images")]
pub struct BackboneArgument {
    #[command(flatten)]
    choice: BackboneChoice,
    /// Cache embeddings in DIR [default: trueshot in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Do not use the cache of embeddings
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    #[command(flatten)]
    device: DeviceArgument,
}

/// The backbone and its preprocessing.
#[derive(Args)]
#[command(next_help_heading = "Embedding images")]
pub struct BackboneChoice {
    /// Embed with this backbone: the built-in efficientnet-lite0 or omniglot-conv4, an ONNX image model (.onnx), or a model
    /// from `train backbone` (.safetensors) [default: efficientnet-lite0; omniglot-conv4 for omniglot]
    #[arg(short, long, value_name = "NAME|FILE")]
    backbone: Option<PathBuf>,
    /// Resize images to PX x PX pixels (efficientnet-lite0, and ONNX models without a fixed input size)
    #[arg(long, value_name = "PX", value_parser = clap::value_parser!(u32).range(1..))]
    size: Option<u32>,
    /// Subtract this mean from colour values in 0..1 [default: ImageNet's mean]
    #[arg(
        long,
        help_heading = "ONNX models",
        value_name = "R,G,B",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    mean: Option<Vec<f32>>,
    /// Divide by this standard deviation after subtracting the mean [default: ImageNet's standard deviation]
    #[arg(
        long,
        help_heading = "ONNX models",
        value_name = "R,G,B",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    std: Option<Vec<f32>>,
    /// Use this output of the model [default: the first output with one row per image]
    #[arg(long, help_heading = "ONNX models", value_name = "NAME")]
    output_name: Option<String>,
    /// Make images that are not square fit in this way [default: squash]
    #[arg(long, value_enum)]
    fit: Option<FitArgument>,
    /// Resize images with this interpolation [default: the one the backbone specifies, or bilinear]
    #[arg(long, value_enum)]
    resampling: Option<ResamplingArgument>,
}

/// Interpolation for resizing.
#[derive(Clone, Copy, ValueEnum)]
enum ResamplingArgument {
    /// Bilinear, as torchvision does by default
    Bilinear,
    /// Bicubic, slightly sharper
    Bicubic,
}

impl BackboneArgument {
    /// The backbone given by the user, if any. Fails if the requested GPU cannot be used.
    pub fn find(&self) -> anyhow::Result<Option<Backbone>> {
        let backbone = self.choice.find()?;
        // Called for its error: the requested GPU cannot run this backbone.
        backbone.as_ref().map_or(Ok(true), |backbone| self.may_use_gpu(backbone))?;
        self.device.check()?;
        Ok(backbone)
    }

    /// Fails if an option for embedding images is given for the embeddings in the file `path`.
    pub fn check_unused(&self, path: &Path) -> anyhow::Result<()> {
        let path = path.display();
        if let Some((option, _)) = self.choice.given().first() {
            anyhow::bail!("--{option} applies to images, but {path} contains embeddings");
        }
        self.device.require_cpu(&format!("{path} contains embeddings, which are processed on the CPU"))
    }

    /// The options for the backbone and its preprocessing as they were given, each with a space before it.
    pub fn as_given(&self) -> String {
        let given = self.choice.given();
        given.iter().map(|(option, value)| format!(" --{option} {}", shell_word(value))).collect()
    }

    /// Refuses `--device cuda` for work that only the CPU can do, with this error message.
    pub fn require_cpu(&self, message: &str) -> anyhow::Result<()> {
        self.device.require_cpu(message)
    }

    /// The given backbone, or the default for these images.
    pub fn find_default(&self, collection: &Collection) -> anyhow::Result<Backbone> {
        Ok(Backbone::default_for(collection, &self.choice.options())?)
    }

    /// The built-in backbone of this name.
    pub fn find_named(&self, name: &str) -> anyhow::Result<Backbone> {
        built_in(name, self.choice.options(), GIVE_BACKBONE)
    }

    /// The backbone of a classifier from `trueshot fit`: the given one, or the built-in one that the classifier names.
    pub fn find_for(&self, predictor: &Predictor) -> anyhow::Result<Backbone> {
        self.choice.find_for(predictor, self.find()?, GIVE_BACKBONE)
    }

    /// Prints a warning if embeddings could not be cached, with the reason.
    pub fn report_cache_problem(&self, embedder: &Embedder) {
        if let Some(problem) = embedder.cache().and_then(|cache| cache.finish()) {
            say!("warning: the embeddings could not be cached: {problem}");
        }
    }

    /// The embedder on the chosen device. With `--device auto` that is a GPU if there is one and there are enough
    /// images, with a fallback to the CPU if the GPU fails.
    pub fn embedder(&self, mut backbone: Backbone, images: usize) -> anyhow::Result<Embedder> {
        // Opening a GPU takes as long as embedding some hundreds of images on the CPU.
        let is_worthwhile = !self.device.is_auto() || images >= GPU_MIN_IMAGES;
        if is_worthwhile
            && self.may_use_gpu(&backbone)?
            && let Some(gpu) = self.device.find()?
        {
            say!("embedding on the GPU: {}", gpu.name());
            backbone.start_on_gpu(gpu)?;
        }
        Ok(self.with_cache(backbone))
    }

    /// The embedder of a server: the GPU is opened at once, and with `--device auto` whenever there is one.
    pub fn server_embedder(&self, mut backbone: Backbone) -> anyhow::Result<Embedder> {
        if self.may_use_gpu(&backbone)?
            && let (Some(device), _) = self.device.open()?
        {
            match backbone.move_to_gpu(&device) {
                Ok(()) => say!("embedding on the GPU: {}", device.name()),
                Err(error) if self.device.is_auto() => say!("embedding on the CPU ({error})"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.with_cache(backbone))
    }

    /// Whether the backbone can run on a GPU; if not, `--device cuda` is an error.
    fn may_use_gpu(&self, backbone: &Backbone) -> anyhow::Result<bool> {
        if !backbone.runs_on_gpu() {
            let name = backbone.name();
            self.device.require_cpu(&format!(
                "{name} embeds on the CPU: only Conv4 and EfficientNet-Lite0 embed on a GPU"
            ))?;
        }
        Ok(backbone.runs_on_gpu())
    }

    /// The embedder with its cache, on the device of the backbone. Prints warnings about the backbone.
    pub fn with_cache(&self, backbone: Backbone) -> Embedder {
        if let Some(warning) = backbone.warning() {
            say!("warning: {warning}");
        }
        let location = match &self.cache {
            _ if self.no_cache => CacheLocation::Disabled,
            Some(folder) => CacheLocation::Folder(folder.clone()),
            None => CacheLocation::Default,
        };
        let embedder = Embedder::new(backbone, &location);
        match self.device.is_auto() {
            true => embedder.with_cpu_fallback(|reason| say!("embedding on the CPU instead ({reason})")),
            false => embedder,
        }
    }
}

/// Gives the options of a backbone the help that they need in commands with a classifier: the defaults are those of the
/// classifier.
pub fn defaults_of_classifier(option: Arg) -> Arg {
    match option.get_id().as_str() {
        "backbone" => option.help(
            "Embed with this backbone: the built-in efficientnet-lite0 or omniglot-conv4, an ONNX image model (.onnx), or a \
             model from `train backbone` (.safetensors) [default: the one that the classifier names]",
        ),
        "fit" => option
            .help("Make images that are not square fit in this way [default: as for the examples of the classifier]"),
        "resampling" => {
            option.help("Resize images with this interpolation [default: as for the examples of the classifier]")
        }
        _ => option,
    }
}

/// The hint for a backbone that is not built in.
const GIVE_BACKBONE: &str = "give the file of the backbone with --backbone";

impl BackboneChoice {
    /// Whether the user has given a backbone.
    pub fn is_given(&self) -> bool {
        self.backbone.is_some()
    }

    /// The backbone given by the user, if any.
    pub fn find(&self) -> anyhow::Result<Option<Backbone>> {
        Ok(self.backbone.as_ref().map(|given| Backbone::find(given, &self.options())).transpose()?)
    }

    /// The backbone of a classifier: `given`, or else the built-in one that the classifier names, with the
    /// preprocessing that it names unless options for it were given.
    ///
    /// # Errors
    /// If the classifier was fitted with another backbone or takes embeddings of another dimension, or if no backbone
    /// is given and the one that the classifier names is not built in; `hint` is for the last error.
    pub fn find_for(
        &self,
        predictor: &Predictor,
        given: Option<Backbone>,
        hint: &str,
    ) -> anyhow::Result<Backbone> {
        let fitted_with = predictor.embedder().unwrap_or_default();
        let backbone = match given {
            Some(backbone) => backbone,
            None => {
                // The name without details: `omniglot-conv4` for `omniglot-conv4 (conv4, HASH)`.
                let name = fitted_with.split(" (").next().unwrap_or_default();
                built_in(name, self.options().or(BackboneOptions::from_name(fitted_with)), hint)?
            }
        };
        let name = backbone.name();
        anyhow::ensure!(
            fitted_with.is_empty() || fitted_with == name,
            hinted(
                format!(
                    "the classifier was trained on embeddings of {fitted_with}, but the backbone is {name}"
                ),
                "give the same backbone with --backbone, and the same preprocessing with --size, --fit and --resampling"
            )
        );
        anyhow::ensure!(
            backbone.dim() == predictor.dim(),
            hinted(
                format!(
                    "the classifier takes embeddings of {} dimensions, but {name} computes {}",
                    predictor.dim(),
                    backbone.dim()
                ),
                "give the backbone of its embeddings with --backbone"
            )
        );
        Ok(backbone)
    }

    /// The options that were given, without dashes, with their values.
    pub fn given(&self) -> Vec<(&'static str, String)> {
        let list = |values: &Vec<f32>| values.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
        let options = [
            ("backbone", self.backbone.as_ref().map(|backbone| backbone.display().to_string())),
            ("size", self.size.map(|size| size.to_string())),
            ("mean", self.mean.as_ref().map(list)),
            ("std", self.std.as_ref().map(list)),
            ("output-name", self.output_name.clone()),
            ("fit", self.fit.and_then(value_name)),
            ("resampling", self.resampling.and_then(value_name)),
        ];
        options.into_iter().filter_map(|(option, value)| Some((option, value?))).collect()
    }

    /// The options in the form that the library takes.
    fn options(&self) -> BackboneOptions {
        BackboneOptions {
            size: self.size.map(|size| size as usize),
            mean: self.mean.clone(),
            std: self.std.clone(),
            fit: self.fit.map(Into::into),
            resampling: self.resampling.map(|resampling| match resampling {
                ResamplingArgument::Bilinear => Resampling::Bilinear,
                ResamplingArgument::Bicubic => Resampling::Bicubic,
            }),
            output: self.output_name.clone(),
        }
    }
}

/// The built-in backbone of this name, the default one for an empty name; `hint` is for the error if the name is
/// unknown.
fn built_in(name: &str, options: BackboneOptions, hint: &str) -> anyhow::Result<Backbone> {
    let names = ["efficientnet-lite0", "omniglot-conv4"];
    // A classifier that names no backbone is tried with the default one.
    let name = if name.is_empty() { names[0] } else { name };
    anyhow::ensure!(
        names.contains(&name),
        hinted(format!("the classifier was trained on embeddings of {name}, which is not built in"), hint)
    );
    Ok(Backbone::find(name, &options)?)
}

/// The value of an option as it is written on the command line.
fn value_name<T: ValueEnum>(value: T) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_string())
}
