//! [`Backbone`]: a trained network together with its preprocessing, which turns images into embeddings (vectors of
//! features).
//!
//! Start with [`Backbone::find`]. A backbone is read from a file or is built in. There are three kinds of networks:
//! Conv4, which `trueshot train` trains; EfficientNet-Lite0, which is built in; and any image model in ONNX. The first
//! two are safetensors files with named tensors and *notes* (entries of the file's metadata): `architecture` (`conv4`,
//! `efficientnet-lite0`), `input_size`, `mean` and `std` per channel, and optionally `resampling`.
//! [`network`](crate::network) is the interface that all networks implement.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use trueshot::model;
use trueshot::tensors::Tensors;
use trueshot_nn::Isa;
use trueshot_nn::conv4::{self, Conv4Embedder, Shape};
use trueshot_nn::efficientnet::{self, EfficientNetEmbedder};

use crate::batch_queue::BatchQueue;
use crate::built_in;
use crate::decoded_image::Channels;
use crate::error::{Error, Result};
use crate::network::{EmbeddingNetwork, EmbeddingSession};
use crate::onnx;
use crate::preprocess::{Preprocessing, comma_separated};
use crate::resize::{Fit, Resampling};
use crate::source::Collection;

/// The architecture that `trueshot train` trains.
pub const CONV4_ARCHITECTURE: &str = "conv4";
/// The architecture of the built-in backbone for photographs.
pub const EFFICIENTNET_ARCHITECTURE: &str = "efficientnet-lite0";

/// Options that override what a model's own file says or complete it. `model.toml` next to `model.onnx` may contain the
/// same keys.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneOptions {
    /// Height and width of images, in pixels.
    pub size: Option<usize>,
    /// Subtracted from a value in [0, 1], for each channel.
    pub mean: Option<Vec<f32>>,
    /// Divisor after the mean is subtracted, for each channel.
    pub std: Option<Vec<f32>>,
    /// How to handle an image that is not square.
    pub fit: Option<Fit>,
    /// The interpolation for resizing.
    pub resampling: Option<Resampling>,
    /// The output of an ONNX model to use as the embedding.
    pub output: Option<String>,
}

impl BackboneOptions {
    /// The image size, fit and resampling that are part of the [name](Backbone::name) of a backbone. With them,
    /// [`Backbone::find`] opens a built-in backbone as the one that has this name.
    ///
    /// ```
    /// use trueshot_vision::{Backbone, backbone::BackboneOptions};
    ///
    /// let options = BackboneOptions { size: Some(96), ..BackboneOptions::default() };
    /// let backbone = Backbone::find("efficientnet-lite0", &options)?;
    /// assert_eq!(BackboneOptions::from_name(backbone.name()), options);
    /// # Ok::<(), trueshot_vision::Error>(())
    /// ```
    pub fn from_name(name: &str) -> BackboneOptions {
        let mut options = BackboneOptions::default();
        // `efficientnet-lite0 (efficientnet-lite0, 320 px, HASH, crop)`, as written by `Backbone::efficientnet`.
        let details = name.split_once(" (").and_then(|(_, details)| details.strip_suffix(')'));
        for detail in details.unwrap_or_default().split(", ") {
            match detail {
                "squash" => options.fit = Some(Fit::Squash),
                "crop" => options.fit = Some(Fit::Crop),
                "bilinear" => options.resampling = Some(Resampling::Bilinear),
                "bicubic" => options.resampling = Some(Resampling::Bicubic),
                _ => {
                    let size = detail.strip_suffix(" px").and_then(|size| size.parse().ok());
                    options.size = options.size.or(size);
                }
            }
        }
        options
    }

    /// Fills options that are not set from `others`.
    pub fn or(self, others: BackboneOptions) -> BackboneOptions {
        BackboneOptions {
            size: self.size.or(others.size),
            mean: self.mean.or(others.mean),
            std: self.std.or(others.std),
            fit: self.fit.or(others.fit),
            resampling: self.resampling.or(others.resampling),
            output: self.output.or(others.output),
        }
    }
}

/// The number of images from which embedding on a GPU pays: opening a GPU takes as long as embedding some hundreds of
/// images on the CPU. Images in the cache count too, so that the result does not depend on what was embedded before.
pub const GPU_MIN_IMAGES: usize = 512;

/// The parameters of a Conv4 or an EfficientNet-Lite0, which run on the CPU and on a GPU.
#[derive(Clone)]
pub(crate) enum Parameters {
    /// In the layout of [`conv4::layout`].
    Conv4(Arc<[f32]>),
    /// In the layout of [`efficientnet::layout`].
    EfficientNet(Arc<[f32]>),
}

impl Parameters {
    /// The network on the CPU.
    fn network(&self, preprocessing: &Preprocessing) -> Box<dyn EmbeddingNetwork> {
        let Preprocessing { size, channels, .. } = *preprocessing;
        match self {
            Parameters::Conv4(values) => {
                Box::new(Conv4Embedder::new(Shape { size, channels: channels.count() }, values))
            }
            Parameters::EfficientNet(values) => Box::new(EfficientNetEmbedder::new(size, values)),
        }
    }
}

/// A network that embeds images, with its preprocessing.
///
/// ```
/// use trueshot_vision::{Backbone, DecodedImage, backbone::BackboneOptions};
///
/// let backbone = Backbone::find("omniglot-conv4", &BackboneOptions::default())?;
/// let preprocessing = backbone.preprocessing();
/// let white = DecodedImage::new(28, 28, preprocessing.channels, vec![255; 28 * 28]);
/// let mut input = vec![0.0; preprocessing.input_len()];
/// preprocessing.normalise(&white, &mut input);
/// let mut embedding = vec![0.0; backbone.dim()];
/// backbone.session().embed(&input, &mut embedding).expect("built-in networks do not fail");
/// # Ok::<(), trueshot_vision::Error>(())
/// ```
pub struct Backbone {
    network: Box<dyn EmbeddingNetwork>,
    preprocessing: Preprocessing,
    /// See [`Backbone::name`].
    name: String,
    /// See [`Backbone::warning`].
    warning: Option<String>,
    /// For a move to a GPU or back, and for exports. `None` for an ONNX model or a network of another crate.
    parameters: Option<Parameters>,
    /// The network itself if it is an ONNX model.
    onnx: Option<onnx::OnnxNetwork>,
    /// The name of the GPU that embeds; `None` on the CPU.
    device: Option<String>,
}

impl Backbone {
    /// Finds a built-in backbone (`efficientnet-lite0`, `omniglot-conv4`) by name, or opens a file.
    pub fn find(name_or_path: impl AsRef<Path>, options: &BackboneOptions) -> Result<Self> {
        let path = name_or_path.as_ref();
        // A built-in name takes precedence over a file; `./efficientnet-lite0` opens a file of that name.
        match path.to_str().and_then(built_in::tensors) {
            Some(tensors) => Self::with_options(&tensors?, &path.to_string_lossy(), options),
            None if has_extension(path, "onnx") => Self::from_opened(onnx::open(path, options)?, path),
            None => Self::with_options(&open_tensors(path)?, &file_stem(path), options),
        }
    }

    /// The default backbone of a collection: the Conv4 for the built-in drawings, EfficientNet-Lite0 for everything
    /// else.
    pub fn default_for(collection: &Collection, options: &BackboneOptions) -> Result<Self> {
        let name =
            if collection.is_built_in() { built_in::OMNIGLOT_CONV4 } else { EFFICIENTNET_ARCHITECTURE };
        Self::find(name, options)
    }

    /// Opens a backbone file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::find(path, &BackboneOptions::default())
    }

    /// Opens an ONNX model from the bytes of its file; `name` is the name of the backbone in results.
    pub fn from_onnx(bytes: Vec<u8>, name: &str, options: &BackboneOptions) -> Result<Self> {
        Self::from_opened(onnx::load(bytes, Path::new(name), options)?, Path::new(name))
    }

    /// Checks the bytes of an ONNX file without running the model, which may still fail when it is opened.
    pub fn check_onnx(bytes: &[u8], name: &str) -> Result<()> {
        onnx::check(bytes, Path::new(name))
    }

    /// Makes a backbone of an opened ONNX model. The name of the backbone is made from the stem of `path`.
    fn from_opened(opened: onnx::OnnxModel, path: &Path) -> Result<Self> {
        let onnx::OnnxModel { network, preprocessing, differences, output, hash, warning } = opened;
        let (stem, size) = (file_stem(path), preprocessing.size);
        let name = format!("{stem} (onnx, {size} px, output '{output}', {hash}{differences})");
        let onnx = Some(network.clone());
        Ok(Backbone { warning, onnx, ..Self::from_network(Box::new(network), preprocessing, name) })
    }

    /// Makes a backbone of tensors and their notes. Results name it `name` with a hash of the parameters.
    pub fn from_tensors(tensors: &Tensors, name: &str) -> Result<Self> {
        Self::with_options(tensors, name, &BackboneOptions::default())
    }

    /// Makes a Conv4 or EfficientNet-Lite0 of its tensors and notes, with options that override the notes.
    fn with_options(tensors: &Tensors, name: &str, options: &BackboneOptions) -> Result<Self> {
        // A file of joint training also has the tensors of a head.
        let tensors = &*model::backbone_part(tensors);
        let is_efficientnet = tensors.note("architecture") == Some(EFFICIENTNET_ARCHITECTURE);
        let architecture = if is_efficientnet { EFFICIENTNET_ARCHITECTURE } else { CONV4_ARCHITECTURE };
        check_options(options, is_efficientnet)?;
        let from_file = read_preprocessing_notes(tensors, architecture)?;
        let preprocessing = Preprocessing {
            size: options.size.unwrap_or(from_file.size),
            fit: options.fit.unwrap_or(from_file.fit),
            resampling: options.resampling.unwrap_or(from_file.resampling),
            ..from_file.clone()
        };
        let differences = preprocessing.differences(&from_file);
        if is_efficientnet {
            return Self::efficientnet(tensors, name, preprocessing, &differences);
        }
        let parameters = model::flat(&conv4::layout(preprocessing.channels.count()), tensors)?;
        let name = format!("{name} ({CONV4_ARCHITECTURE}, {}{differences})", parameter_hash(&parameters));
        Ok(Self::with_parameters(Parameters::Conv4(parameters.into()), preprocessing, name))
    }

    /// Makes an EfficientNet-Lite0 of its tensors. `differences` are those of `preprocessing` from the one that the
    /// file describes, as text for the name of the backbone.
    fn efficientnet(
        tensors: &Tensors,
        name: &str,
        preprocessing: Preprocessing,
        differences: &str,
    ) -> Result<Self> {
        let size = preprocessing.size;
        if !(efficientnet::SMALLEST..=efficientnet::LARGEST).contains(&size) {
            return Err(Error::OutOfRange {
                what: IMAGE_SIZE,
                given: size.to_string(),
                allowed: format!("{} to {}", efficientnet::SMALLEST, efficientnet::LARGEST),
            });
        }
        if preprocessing.channels != Channels::Colour {
            let problem = "its metadata 'mean' has 1 number; a network for colour images needs 3".into();
            return Err(Error::NotABackbone { path: tensors.path().into(), problem });
        }
        let parameters = model::flat(&efficientnet::layout(), tensors)?;
        let hash = parameter_hash(&parameters);
        let name = format!("{name} ({EFFICIENTNET_ARCHITECTURE}, {size} px, {hash}{differences})");
        Ok(Self::with_parameters(Parameters::EfficientNet(parameters.into()), preprocessing, name))
    }

    /// Makes a backbone of Conv4 parameters in memory, for instance during training.
    pub fn from_parameters(preprocessing: Preprocessing, parameters: &[f32]) -> Self {
        let name = format!("{CONV4_ARCHITECTURE}, {}", parameter_hash(parameters));
        Self::with_parameters(Parameters::Conv4(parameters.into()), preprocessing, name)
    }

    /// Makes a backbone of the parameters of a Conv4 or an EfficientNet-Lite0, on the CPU.
    fn with_parameters(parameters: Parameters, preprocessing: Preprocessing, name: String) -> Self {
        let network = parameters.network(&preprocessing);
        Backbone { parameters: Some(parameters), ..Self::from_network(network, preprocessing, name) }
    }

    /// The parameters of a Conv4 or an EfficientNet-Lite0.
    pub(crate) fn parameters(&self) -> Option<&Parameters> {
        self.parameters.as_ref()
    }

    /// The network if it is an ONNX model.
    pub(crate) fn onnx(&self) -> Option<&onnx::OnnxNetwork> {
        self.onnx.as_ref()
    }

    /// Whether the network can be moved to a GPU: Conv4 and EfficientNet-Lite0 can.
    pub fn runs_on_gpu(&self) -> bool {
        self.parameters.is_some()
    }

    /// Moves the network to a GPU. Images are rounded to bytes there, and activations are 16-bit floats: embeddings
    /// differ from those of the CPU in the third digit.
    ///
    /// # Errors
    /// If the network is neither a Conv4 nor an EfficientNet-Lite0, or does not fit into the memory of the GPU. The
    /// backbone stays on the CPU then.
    #[cfg(feature = "cuda")]
    pub fn move_to_gpu(&mut self, device: &trueshot_cuda::Device) -> Result<()> {
        let parameters = self.movable_parameters()?;
        let network = crate::gpu_network::GpuNetwork::new(device, parameters, &self.preprocessing)
            .map_err(trueshot::Error::from)?;
        self.network = Box::new(network);
        self.device = Some(device.name().into());
        Ok(())
    }

    /// Like `move_to_gpu`, for a GPU that is not open yet: a background thread opens it while images are decoded. If
    /// that fails, the first call that embeds returns the error.
    ///
    /// # Errors
    /// If the network is neither a Conv4 nor an EfficientNet-Lite0. The backbone stays on the CPU then.
    #[cfg(feature = "cuda")]
    pub fn start_on_gpu(&mut self, gpu: trueshot_cuda::FoundGpu) -> Result<()> {
        let name = gpu.name().to_owned();
        self.start_on_device(name, move || gpu.open())
    }

    /// [`Self::start_on_gpu`] for any function that opens a GPU; `name` is the name of the GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn start_on_device(
        &mut self,
        name: String,
        open: impl FnOnce() -> trueshot_cuda::Result<trueshot_cuda::Device> + Send + 'static,
    ) -> Result<()> {
        let parameters = self.movable_parameters()?.clone();
        let network = crate::gpu_network::GpuNetwork::start(parameters, &self.preprocessing, open);
        self.network = Box::new(network);
        self.device = Some(name);
        Ok(())
    }

    /// The parameters for a GPU; an error for a network that runs on the CPU only.
    #[cfg(feature = "cuda")]
    fn movable_parameters(&self) -> Result<&Parameters> {
        self.parameters.as_ref().ok_or_else(|| {
            let message =
                format!("{} cannot embed on a GPU: only Conv4 and EfficientNet-Lite0 can", self.name);
            trueshot::Error::Gpu { message, hint: "use the CPU".into(), checkpoint: None }.into()
        })
    }

    /// The same backbone on the CPU, if it is on a GPU.
    pub(crate) fn on_cpu(&self) -> Option<Backbone> {
        self.device.as_ref()?;
        let parameters = self.parameters.clone()?;
        let preprocessing = self.preprocessing.clone();
        let backbone = Self::with_parameters(parameters, preprocessing, self.name.clone());
        Some(Backbone { warning: self.warning.clone(), ..backbone })
    }

    /// Makes a backbone of any network and the preprocessing of its images. `name` identifies the network in files and
    /// in the cache, so networks with different embeddings must have different names.
    ///
    /// ```
    /// use trueshot_vision::network::{EmbeddingNetwork, EmbeddingSession};
    /// use trueshot_vision::{Backbone, Preprocessing, Unreadable};
    ///
    /// /// Embeds an image as its mean colour.
    /// struct MeanColour;
    ///
    /// impl EmbeddingNetwork for MeanColour {
    ///     fn dim(&self) -> usize {
    ///         3
    ///     }
    ///     fn input_len(&self) -> usize {
    ///         8 * 8 * 3
    ///     }
    ///     fn batch_size(&self) -> usize {
    ///         4
    ///     }
    ///     fn is_costly(&self) -> bool {
    ///         false
    ///     }
    ///     fn session(&self) -> Box<dyn EmbeddingSession> {
    ///         Box::new(MeanColour)
    ///     }
    /// }
    ///
    /// impl EmbeddingSession for MeanColour {
    ///     fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
    ///         for (image, mean) in images.chunks_exact(8 * 8 * 3).zip(out.chunks_exact_mut(3)) {
    ///             for (channel, mean) in mean.iter_mut().enumerate() {
    ///                 *mean = image.iter().skip(channel).step_by(3).sum::<f32>() / 64.0;
    ///             }
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let backbone = Backbone::from_network(Box::new(MeanColour), Preprocessing::colour(8), "mean colour");
    /// let mut embedding = [0.0; 3];
    /// backbone.session().embed(&[0.5; 8 * 8 * 3], &mut embedding).unwrap();
    /// assert_eq!(embedding, [0.5; 3]);
    /// ```
    ///
    /// # Panics
    /// If the network takes images of another size.
    pub fn from_network(
        network: Box<dyn EmbeddingNetwork>,
        preprocessing: Preprocessing,
        name: impl Into<String>,
    ) -> Self {
        assert_eq!(network.input_len(), preprocessing.input_len(), "values of an input image");
        let (name, warning, parameters, onnx, device) = (name.into(), None, None, None, None);
        Backbone { network, preprocessing, name, warning, parameters, onnx, device }
    }

    /// The name of the GPU that embeds; `None` on the CPU.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns an error if the network has failed, such as a lost GPU.
    pub(crate) fn check_network(&self) -> Result<()> {
        Ok(self.network.failure().map_or(Ok(()), Err)?)
    }

    /// The name in files that the backbone writes: its name, and in parentheses the architecture, a hash of the
    /// parameters, and what the options change of the preprocessing, such as `, crop`. Backbones with different
    /// embeddings have different names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A warning for the user, for instance that the output of an ONNX model looks like class scores.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Everything that an embedding depends on besides its image: backbones with the same identity give the same
    /// numbers. Contains the name of the GPU or the instruction set of the CPU, whose arithmetic differs.
    pub fn identity(&self) -> String {
        let device = self.device.as_deref().unwrap_or(Isa::current().name());
        format!("{} {:?} {device}", self.name, self.preprocessing)
    }

    /// Size, channels and normalisation of the images that the network takes.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// The length of an embedding.
    pub fn dim(&self) -> usize {
        self.network.dim()
    }

    /// Number of images that one thread should embed per call; more would not be faster.
    pub fn batch_size(&self) -> usize {
        self.network.batch_size()
    }

    /// Whether embedding an image takes longer than reading it.
    pub fn is_costly(&self) -> bool {
        self.network.is_costly()
    }

    /// The queue of a network on a GPU; `None` on the CPU.
    pub(crate) fn queue(&self) -> Option<&BatchQueue> {
        self.network.queue()
    }

    /// A session of the network for one thread. It takes images normalised by [`Backbone::preprocessing`].
    pub fn session(&self) -> Box<dyn EmbeddingSession> {
        self.network.session()
    }
}

/// Whether a file has an extension, in upper or lower case.
fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// The name of a file without its extension.
fn file_stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Opens a file of tensors. If it does not exist, the error lists the built-in names: the name may be misspelt.
fn open_tensors(path: &Path) -> Result<Tensors> {
    if path.extension().is_none() && !path.exists() {
        let known = format!("{EFFICIENTNET_ARCHITECTURE} and {}", built_in::OMNIGLOT_CONV4);
        return Err(Error::NotABackbone {
            path: path.into(),
            problem: format!("no such file, and no built-in backbone has that name; built in: {known}"),
        });
    }
    Ok(Tensors::open(path)?)
}

/// The name of [`BackboneOptions::size`] in errors.
const IMAGE_SIZE: &str = "the image size";

/// Refuses options that the file of a Conv4 or EfficientNet-Lite0 defines.
fn check_options(options: &BackboneOptions, is_efficientnet: bool) -> Result<()> {
    let refused = [
        ("the mean", options.mean.is_some()),
        ("the standard deviation", options.std.is_some()),
        ("the output", options.output.is_some()),
        (IMAGE_SIZE, options.size.is_some() && !is_efficientnet),
    ];
    let Some((what, _)) = refused.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let allowed = match what {
        IMAGE_SIZE => format!(
            "for {EFFICIENTNET_ARCHITECTURE} and ONNX models only, because the file of this backbone defines it"
        ),
        _ => "for ONNX models only, because the file of this backbone defines it".into(),
    };
    Err(Error::OutOfRange { what, given: "given".into(), allowed })
}

/// The first 16 hexadecimal digits of the hash of the parameters.
fn parameter_hash(parameters: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for value in parameters {
        hasher.update(&value.to_le_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Writes the preprocessing as notes of a backbone file.
pub(crate) fn write_preprocessing_notes(
    tensors: &mut Tensors,
    preprocessing: &Preprocessing,
    architecture: &str,
) {
    tensors.set_note("architecture", architecture);
    tensors.set_note("input_size", preprocessing.size.to_string());
    tensors.set_note("mean", comma_separated(&preprocessing.mean));
    tensors.set_note("std", comma_separated(&preprocessing.std));
}

/// Reads the preprocessing from the notes of a file, whose note `architecture` must be `wanted`.
pub(crate) fn read_preprocessing_notes(tensors: &Tensors, wanted: &str) -> Result<Preprocessing> {
    let bad = |problem: String| Error::NotABackbone { path: tensors.path().into(), problem };
    let note = |key: &str| tensors.note(key).ok_or_else(|| bad(format!("it has no metadata '{key}'")));
    let architecture = note("architecture")?;
    if architecture != wanted {
        return Err(bad(format!("its architecture is '{architecture}'; known is '{wanted}'")));
    }
    let numbers = |key: &str| -> Result<Vec<f32>> {
        let text = note(key)?;
        let numbers = text.split(',').map(|number| number.trim().parse());
        numbers.collect::<Result<_, _>>().map_err(|_| bad(format!("its metadata '{key}' is '{text}'")))
    };
    let (mean, std) = (numbers("mean")?, numbers("std")?);
    let channels = match mean.len() {
        1 => Channels::Grey,
        3 => Channels::Colour,
        count => return Err(bad(format!("its metadata 'mean' has {count} numbers; expected 1 or 3"))),
    };
    let size = note("input_size")?;
    let size = size.trim().parse().map_err(|_| bad(format!("its metadata 'input_size' is '{size}'")))?;
    // The range of a Conv4. That of an EfficientNet-Lite0 is smaller, and is checked by `Backbone::efficientnet`.
    if !(Shape { size, channels: channels.count() }).is_possible() {
        let (least, most) = (Shape::SMALLEST, Shape::LARGEST);
        return Err(bad(format!("its metadata 'input_size' is {size}; allowed: {least} to {most}")));
    }
    let resampling = match tensors.note("resampling") {
        None | Some("bilinear") => Resampling::Bilinear,
        Some("bicubic") => Resampling::Bicubic,
        Some(unknown) => {
            return Err(bad(format!(
                "its metadata 'resampling' is '{unknown}'; supported: bilinear and bicubic"
            )));
        }
    };
    let preprocessing = Preprocessing { size, channels, mean, std, fit: Fit::default(), resampling };
    preprocessing.check()?;
    Ok(preprocessing)
}
