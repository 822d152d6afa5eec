//! `trueshot episode`: draws the noisy support set of one episode as an SVG image. Start with [`run`].
//!
//! [`EpisodeArgument`] holds the options that select an episode, which `trueshot attention` has too.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use trueshot::Embeddings;
use trueshot::episode::{DrawnEpisode, EpisodeSpec, Episodes, Item, Sampler, Shots};
use trueshot::noise::{Noise, NoiseKind, NoiseLevels};
use trueshot::report::{FigureClass, FigureItem, SupportSetFigure};
use trueshot::rng::IndexSampler;
use trueshot_vision::{Channels, Collection};

use crate::images_argument::ImagesArgument;
use crate::messages::say;
use crate::output::{check_writable, write_file};
use crate::threads::Threads;

/// Draw the noisy support set of an episode as an SVG image, with one row per class
///
/// A solid green frame marks a right label, a dashed red frame a wrong label, with the true class below the image. With
/// the same ways, shots, queries and seed, the episode is the one that `trueshot eval` draws from the embeddings of
/// these images. DATASET is any data set that `trueshot embed` accepts.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot episode omniglot --split test --queries 10 -o set.svg
  trueshot episode mini/test --noise paired=40 --episode 7 -o set.svg
  trueshot episode mini/test --noise outlier=40 --outliers mini/val -o set.svg")]
pub struct Arguments {
    /// Images to draw the episode from
    #[arg(value_name = "DATASET")]
    pictures: PathBuf,
    /// Write the SVG file, with the images in it, to FILE
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Draw outliers from these images of other classes [default: from classes of DATASET that are not in the episode]
    #[arg(long, value_name = "DATASET")]
    outliers: Option<PathBuf>,
    /// Use this split of the outlier images, if they have several splits
    #[arg(long, value_name = "NAME", requires = "outliers")]
    outliers_split: Option<String>,
    #[command(flatten)]
    which: EpisodeArgument,
    #[command(flatten)]
    selection: ImagesArgument,
    #[command(flatten)]
    threads: Threads,
}

/// The options that select one episode and its noise.
#[derive(Args)]
pub struct EpisodeArgument {
    /// Draw the episode with this number, counted from 0
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    episode: u64,
    /// Apply noise of this type and level in percent
    #[arg(short, long, default_value = "symmetric=40", value_name = "TYPE=LEVEL")]
    noise: NoiseLevels,
    /// Draw N classes per episode
    #[arg(long, default_value_t = 5, value_name = "N")]
    ways: usize,
    /// Draw K labelled items per class
    #[arg(long, default_value_t = 5, value_name = "K")]
    shots: usize,
    /// Draw Q queries per class; they are not shown, but a different number gives a different episode
    #[arg(long, default_value_t = 15, value_name = "Q")]
    queries: usize,
    /// Draw episodes with this random seed
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
}

impl EpisodeArgument {
    /// Draws the selected episode from labelled rows, and returns it with its noise. `outliers` are the rows that
    /// outlier noise draws from; `None`: the classes of `rows` that are not in the episode.
    ///
    /// # Errors
    /// If `--noise` has several levels, or there are too few rows or classes for the episode.
    pub fn draw(
        &self,
        rows: &Embeddings,
        outliers: Option<&Embeddings>,
    ) -> anyhow::Result<(Noise, DrawnEpisode)> {
        let &[noise] = self.noise.0.as_slice() else {
            anyhow::bail!("--noise has {} levels, but an episode has one", self.noise.0.len());
        };
        let EpisodeArgument { ways, queries, seed, .. } = *self;
        let spec = EpisodeSpec { ways, shots: Shots::exactly(self.shots), queries, seed };
        let sampler = Sampler::new(rows, outliers, spec, vec![noise])?;
        Ok((noise, sampler.draw(self.episode, &mut IndexSampler::default())?))
    }

    /// Whether `--noise` has this type of noise.
    fn has_kind(&self, kind: NoiseKind) -> bool {
        self.noise.0.iter().any(|noise| noise.kind == kind)
    }

    /// The number of the episode, from 0.
    pub fn index(&self) -> u64 {
        self.episode
    }
}

/// Runs `trueshot episode`: draws the episode and writes the SVG file.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_writable([&arguments.output])?;
    arguments.threads.run(|| {
        let Arguments { pictures, selection, outliers_split, .. } = arguments;
        let labelled = LabelledCollection::new(selection.open(pictures)?)?;
        let open_outliers = |outliers: &PathBuf| {
            selection.open_outliers(pictures, &labelled.collection, outliers, outliers_split.as_deref())
        };
        let outliers = arguments.outliers.as_ref().map(open_outliers).transpose()?.flatten();
        let outliers = outliers.map(LabelledCollection::new).transpose()?;
        if arguments.which.has_kind(NoiseKind::Similar) {
            anyhow::bail!("similar noise needs embeddings; allowed here: symmetric, paired, outlier");
        }
        let (noise, drawn) =
            arguments.which.draw(&labelled.rows, outliers.as_ref().map(|outliers| &outliers.rows))?;
        let figure = support_set_figure(&labelled, outliers.as_ref(), noise, &drawn)?;
        write_file(&arguments.output, &figure.svg())?;
        say!("{}: {}", arguments.output.display(), figure.description());
        Ok(())
    })
}

/// A collection of images with their classes, from which a [`Sampler`] can draw. Images are read only when they are
/// shown.
struct LabelledCollection {
    collection: Collection,
    /// One row per image, in the order of the collection, with the class of the image. A sampler draws from embeddings,
    /// but except for similar noise it reads only their labels, so the features are a single column of zeros.
    rows: Embeddings,
}

impl LabelledCollection {
    fn new(collection: Collection) -> anyhow::Result<Self> {
        let classes = collection.entries().iter().map(|entry| collection.class_of(entry).to_owned());
        let rows = Embeddings::from_rows(vec![0.0; collection.entries().len()], 1, classes.collect())?;
        Ok(LabelledCollection { collection, rows })
    }

    /// The name of a class for display; for the built-in Omniglot, "Early Aramaic 07" for `Early_Aramaic/character07`.
    fn display_name(&self, class: usize) -> String {
        let name = &self.rows.classes()[class];
        match self.collection.is_built_in() {
            true => name.replace("/character", " ").replace('_', " "),
            false => name.clone(),
        }
    }

    /// The true class of an image, an index into the classes of the collection.
    fn class_of(&self, row: u32) -> usize {
        self.rows.labels()[row as usize] as usize
    }

    /// Reads an image and returns it as a data URI.
    fn image(&self, row: u32) -> anyhow::Result<String> {
        let entry = &self.collection.entries()[row as usize];
        let channels = if self.collection.is_built_in() { Channels::Grey } else { Channels::Colour };
        let image =
            self.collection.read_image_then(entry, channels, |image| image.to_data_uri(MAX_IMAGE_SIDE));
        image.with_context(|| format!("{} cannot be shown", entry.item))
    }
}

/// The maximum height and width of an image in the SVG file, in pixels. Figures show images at 64 px; screens with a
/// high resolution use the rest.
const MAX_IMAGE_SIDE: usize = 96;

/// Makes the figure of a support set. `outliers` is the collection that outliers were drawn from; `None`: `labelled`.
fn support_set_figure(
    labelled: &LabelledCollection,
    outliers: Option<&LabelledCollection>,
    noise: Noise,
    drawn: &DrawnEpisode,
) -> anyhow::Result<SupportSetFigure> {
    let figure_item = |item: &Item| {
        // Without a true class in the episode, the item is an outlier.
        let source = outliers.filter(|_| item.truth.is_none()).unwrap_or(labelled);
        Ok(FigureItem {
            image: source.image(item.row)?,
            truth: item.is_wrong().then(|| source.display_name(source.class_of(item.row))),
            // The weights that methods give to the item. No method runs here.
            opinions: Vec::new(),
        })
    };
    let figure_class = |(number, class): (usize, &trueshot::episode::ClassDraw)| {
        // The episode was drawn with one noise setting, so it has one support set.
        let given_this_class = drawn.supports[0].iter().filter(|item| item.given as usize == number);
        Ok(FigureClass {
            name: labelled.display_name(class.class as usize),
            items: given_this_class.map(figure_item).collect::<anyhow::Result<_>>()?,
        })
    };
    Ok(SupportSetFigure {
        title: format!(
            "The support set of episode {}, {} noise of {} %",
            drawn.episode.index,
            noise.kind,
            noise.percent()
        ),
        caption: String::new(),
        classes: drawn.episode.classes.iter().enumerate().map(figure_class).collect::<anyhow::Result<_>>()?,
    })
}
