//! `trueshot episode`: draws the noisy support set of one episode as an SVG image.

use std::path::{Path, PathBuf};

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
/// the same seed, shots and queries it is the episode that `trueshot eval` draws from the embeddings of these images.
/// DATASET is any data set that `trueshot embed` accepts.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot episode omniglot --split test --queries 10 -o set.svg
  trueshot episode mini/test --noise paired=40 --episode 7 -o set.svg
  trueshot episode mini/test --noise outlier=40 --outliers mini/val -o set.svg")]
pub struct Arguments {
    /// Images
    #[arg(value_name = "DATASET")]
    pictures: PathBuf,
    /// Write the SVG file, with the images in it, to FILE
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Draw outliers from these images of other classes [default: from classes of DATASET that are not in the episode]
    #[arg(long, value_name = "DATASET")]
    outliers: Option<PathBuf>,
    /// Use this split of the outliers, if there are several
    #[arg(long, value_name = "NAME", requires = "outliers")]
    outliers_split: Option<String>,
    #[command(flatten)]
    which: EpisodeArgument,
    #[command(flatten)]
    part: ImagesArgument,
    #[command(flatten)]
    threads: Threads,
}

/// Which episode.
#[derive(Args)]
pub struct EpisodeArgument {
    /// Draw the episode of this number, from 0
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
    /// Assume Q queries per class, which are not shown, but determine the episode together with the seed
    #[arg(long, default_value_t = 15, value_name = "Q")]
    queries: usize,
    /// Draw the episode with this random seed
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
}

impl EpisodeArgument {
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

    /// Whether its noise has this type.
    fn has_kind(&self, kind: NoiseKind) -> bool {
        self.noise.0.iter().any(|noise| noise.kind == kind)
    }

    /// The number of the episode.
    pub fn index(&self) -> u64 {
        self.episode
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_writable([&arguments.output])?;
    arguments.threads.run(|| {
        let labelled = LabelledCollection::new(arguments.part.open(&arguments.pictures)?)?;
        let Arguments { pictures, part, outliers_split, .. } = arguments;
        let open = |outliers: &Path| -> anyhow::Result<LabelledCollection> {
            LabelledCollection::new(part.open_outliers(pictures, outliers, outliers_split.as_deref())?)
        };
        let others = arguments.outliers.as_deref().map(open).transpose()?;
        if arguments.which.has_kind(NoiseKind::Similar) {
            anyhow::bail!("similar noise needs embeddings; allowed here: symmetric, paired, outlier");
        }
        let (noise, drawn) =
            arguments.which.draw(&labelled.labels, others.as_ref().map(|others| &others.labels))?;
        let picture = support_set_figure(&labelled, others.as_ref(), noise, &drawn)?;
        write_file(&arguments.output, &picture.svg())?;
        say!("{}: {}", arguments.output.display(), picture.description());
        Ok(())
    })
}

/// Images that are read one by one, with their classes.
struct LabelledCollection {
    collection: Collection,
    labels: Embeddings,
}

impl LabelledCollection {
    fn new(collection: Collection) -> anyhow::Result<Self> {
        let classes = collection.entries().iter().map(|entry| collection.class_of(entry).to_owned());
        let labels = Embeddings::from_rows(vec![0.0; collection.entries().len()], 1, classes.collect())?;
        Ok(LabelledCollection { collection, labels })
    }

    /// The name of a class for display.
    fn name(&self, class: usize) -> String {
        let name = &self.labels.classes()[class];
        match self.collection.is_built_in() {
            true => name.replace("/character", " ").replace('_', " "),
            false => name.clone(),
        }
    }

    fn class_of(&self, row: u32) -> usize {
        self.labels.labels()[row as usize] as usize
    }

    fn image(&self, row: u32) -> anyhow::Result<String> {
        let entry = &self.collection.entries()[row as usize];
        let channels = if self.collection.is_built_in() { Channels::Grey } else { Channels::Colour };
        let image =
            self.collection.read_image_then(entry, channels, |picture| picture.to_data_uri(MAX_IMAGE_SIDE));
        image.with_context(|| format!("{} cannot be shown", entry.item))
    }
}

/// Images are shown at 64 px, and larger on screens with a high resolution.
const MAX_IMAGE_SIDE: usize = 96;

fn support_set_figure(
    labelled: &LabelledCollection,
    others: Option<&LabelledCollection>,
    noise: Noise,
    drawn: &DrawnEpisode,
) -> anyhow::Result<SupportSetFigure> {
    let item = |item: &Item| {
        let place = others.filter(|_| item.truth.is_none()).unwrap_or(labelled);
        Ok(FigureItem {
            image: place.image(item.row)?,
            truth: item.is_wrong().then(|| place.name(place.class_of(item.row))),
            opinions: Vec::new(),
        })
    };
    let class = |(number, class): (usize, &trueshot::episode::ClassDraw)| {
        let filed = drawn.supports[0].iter().filter(|item| item.given as usize == number);
        Ok(FigureClass {
            name: labelled.name(class.class as usize),
            items: filed.map(item).collect::<anyhow::Result<_>>()?,
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
        classes: drawn.episode.classes.iter().enumerate().map(class).collect::<anyhow::Result<_>>()?,
    })
}
