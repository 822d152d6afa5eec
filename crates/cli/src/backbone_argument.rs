//! The options that select a backbone and its cache, shared by all commands that embed images.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trueshot_vision::backbone::BackboneOptions;
use trueshot_vision::cache::CacheLocation;
use trueshot_vision::{Backbone, Collection, Embedder, Resampling};

use crate::images_argument::FitArgument;
use crate::messages::{hinted, say};

/// Options for embedding images.
#[derive(Args)]
#[command(next_help_heading = "Embedding images")]
pub struct BackboneArgument {
    /// Backbone: the built-in efficientnet-lite0 or omniglot-conv4, an ONNX image model (.onnx), or a model from
    /// `train backbone` (.safetensors) [default: efficientnet-lite0; omniglot-conv4 for omniglot]
    #[arg(short, long, value_name = "NAME|FILE")]
    backbone: Option<PathBuf>,
    /// Height and width to resize images to (efficientnet-lite0, and ONNX models without a fixed input size)
    #[arg(long, value_name = "PX", value_parser = clap::value_parser!(u32).range(1..))]
    size: Option<u32>,
    /// Mean to subtract from colour values in 0..1 [default: ImageNet's mean]
    #[arg(
        long,
        help_heading = "ONNX models",
        value_name = "R,G,B",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    mean: Option<Vec<f32>>,
    /// Standard deviation to divide by after subtracting the mean [default: ImageNet's standard deviation]
    #[arg(
        long,
        help_heading = "ONNX models",
        value_name = "R,G,B",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    std: Option<Vec<f32>>,
    /// Output of the model to use [default: the first output with one row per image]
    #[arg(long, help_heading = "ONNX models", value_name = "NAME")]
    output_name: Option<String>,
    /// How to handle an image that is not square [default: squash]
    #[arg(long, value_enum)]
    fit: Option<FitArgument>,
    /// Interpolation for resizing images [default: the one the backbone specifies, or bilinear]
    #[arg(long, value_enum)]
    resampling: Option<ResamplingArgument>,
    /// Cache directory for embeddings [default: trueshot in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Do not use the cache of embeddings
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
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
    /// The backbone that is asked for, if one is.
    pub fn open(&self) -> anyhow::Result<Option<Embedder>> {
        Ok(self.find()?.map(|backbone| self.embedder(backbone)))
    }

    /// The same without a cache.
    pub fn find(&self) -> anyhow::Result<Option<Backbone>> {
        let backbone = self.backbone.as_ref().map(|given| Backbone::find(given, &self.options()));
        Ok(backbone.transpose()?)
    }

    /// The backbone for such images.
    pub fn open_default(&self, collection: &Collection) -> anyhow::Result<Embedder> {
        Ok(self.embedder(self.find_default(collection)?))
    }

    /// The same without a cache.
    pub fn find_default(&self, collection: &Collection) -> anyhow::Result<Backbone> {
        Ok(Backbone::default_for(collection, &self.options())?)
    }

    /// The backbone of that name, if it is built in.
    pub fn open_named(&self, name: &str) -> anyhow::Result<Embedder> {
        let built_in = ["efficientnet-lite0", "omniglot-conv4"];
        let name = if name.is_empty() { built_in[0] } else { name };
        anyhow::ensure!(
            built_in.contains(&name),
            hinted(
                format!("the classifier was trained on embeddings of {name}, which is not built in"),
                "give the file of the backbone with --backbone"
            )
        );
        Ok(self.embedder(Backbone::find(name, &self.options())?))
    }

    /// Says why nothing was kept, if so.
    pub fn report_cache_problem(&self, embedder: &Embedder) {
        if let Some(problem) = embedder.cache().and_then(|cache| cache.finish()) {
            say!("warning: the embeddings could not be cached: {problem}");
        }
    }

    /// The backbone with its cache; warnings about it are printed.
    pub fn embedder(&self, backbone: Backbone) -> Embedder {
        if let Some(warning) = backbone.warning() {
            say!("warning: {warning}");
        }
        let location = match &self.cache {
            _ if self.no_cache => CacheLocation::Disabled,
            Some(folder) => CacheLocation::Folder(folder.clone()),
            None => CacheLocation::Default,
        };
        Embedder::new(backbone, &location)
    }

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
