//! `trueshot demo`: finds and moves built-in drawings that are in the wrong class folder (`folder`), then compares
//! methods on episodes of such drawings, in which some labels are wrong. Start with [`run`].

mod folder;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use trueshot::Embeddings;
use trueshot::embeddings::Items;
use trueshot::episode::{EpisodeSpec, Episodes, Item, Sampler, Shots};
use trueshot::evaluate::{self, Details, Experiment};
use trueshot::method::{NamedMethod, Registry, TrainedTranfs};
use trueshot::noise::{Noise, NoiseKind};
use trueshot::report::{self, FigureClass, FigureItem, Page, SupportSetFigure};
use trueshot::rng::{IndexSampler, Purpose, Rng};
use trueshot::task::{SupportSet, Task};
use trueshot_vision::{Backbone, Bitmap, Error, Omniglot, OmniglotError, OmniglotHalf, built_in};

use self::folder::{DemoFolder, check_absent};
use crate::messages::{StoppedEarly, say};
use crate::output::{WidthArgument, check_writable, print_escaped, write_file};
use crate::progress::ProgressDisplay;
use crate::threads::Threads;

/// Clean a folder of built-in drawings, then compare methods on drawings with wrong labels
///
/// Sorts handwritten characters (Omniglot) into folders, some of them into a wrong one, and shows how an audit finds them
/// and how a repair moves them back. Then draws many small support sets, makes some of their labels wrong, and shows how
/// accurately each method still classifies new drawings. Writes a page about each part. Needs no files and no network.
#[derive(Args)]
pub struct Arguments {
    /// Write the page about the methods to FILE, and the page of the audit next to it, as NAME-audit.html for NAME.html
    #[arg(short, long, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
    /// Also write the folder with the wrongly sorted drawings to DIR, to try `audit`, `repair` and `serve` on it
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Compare the methods on N episodes
    #[arg(short, long, default_value_t = 200, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..))]
    episodes: u64,
    /// Select characters, drawings and wrong labels with this random seed
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    width: WidthArgument,
}

/// Drawings per class in a support set. Each character has 20 drawings: 5 for the support set of its class, 5 that label
/// noise may put into other classes, and 10 queries.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 10;
/// Classes per episode. With five, accuracies would be near 99 %, and the methods would hardly differ.
const WAYS: usize = 10;
/// The number of classes in the figure of a support set.
const FIGURE_WAYS: usize = 5;
/// The methods whose item weights the figure shows.
const WEIGHTED_METHODS: [&str; 3] = ["median", "cosine", "relabel"];

/// Runs `trueshot demo`: writes both pages, and prints the audit and the accuracies.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let audit_page = arguments.audit_page();
    check_writable([&arguments.output, &audit_page])?;
    if let Some(folder) = &arguments.folder {
        check_absent(folder)?;
    }
    arguments.threads.run(|| {
        let start = Instant::now();
        let backbone = built_in::omniglot_conv4()?;
        let omniglot = Omniglot::sample();
        let characters = embed(&backbone, omniglot.characters_of(OmniglotHalf::Evaluation))?;
        let others = embed(&backbone, omniglot.characters_of(OmniglotHalf::Background))?;
        say!(
            "{} drawings of {} characters as {}-dimensional embeddings ({:.1} s)",
            characters.len(),
            characters.classes().len(),
            characters.dim(),
            start.elapsed().as_secs_f64(),
        );
        let demo_folder = DemoFolder::draw(&backbone, arguments.seed)?;
        if let Some(folder) = &arguments.folder {
            demo_folder.write(folder)?;
        }
        let audited = demo_folder.audit(backbone)?;
        write_file(&audit_page, &audited.page()?)?;
        let columns = arguments.width.limit(None);
        let audit_summary = audited.summary(&audit_page, arguments.folder.as_deref(), columns);
        let printed = print_escaped(&audit_summary);

        let evaluation = arguments.evaluate(&characters, &others)?;
        if evaluation.interrupted {
            say!("stopped early: the results cover the episodes finished so far");
        }
        let page = Page::new("Learning characters from five examples, some of them wrong", &evaluation)
            .introduce(INTRODUCTION)
            .show(arguments.support_set_figure(&characters)?);
        // Both pages are written even if the reader closes the pipe early.
        write_file(&arguments.output, &page.render())?;
        printed?;
        let tables = report::accuracies(&evaluation);
        let page_path = arguments.output.display();
        print_escaped(&format!(
            "\n\
             2. METHODS THAT LEARN FROM WRONG LABELS\n\n\
             {tables}\n\
             Open {page_path} to see a noisy support set and the accuracy at each noise level.\n"
        ))?;
        if evaluation.interrupted { Err(StoppedEarly.into()) } else { Ok(()) }
    })
}

const INTRODUCTION: &str = "Five drawings of each of ten characters, and some of them have a wrong label. \
    Every method builds a classifier from such a support set and then classifies new drawings. ProtoNet trusts \
    all labels equally; the oracle knows which labels are wrong and ignores those drawings; the other methods \
    do not know it.";

impl Arguments {
    /// The page of the audit, next to that of the methods: `report-audit.html` for `report.html`.
    fn audit_page(&self) -> PathBuf {
        let mut name = self.output.file_stem().unwrap_or_default().to_owned();
        name.push("-audit.html");
        self.output.with_file_name(name)
    }

    /// Evaluates all methods on episodes of `characters`, at several levels of three noise types. `others` are the
    /// characters from which outlier noise takes its drawings.
    fn evaluate(&self, characters: &Embeddings, others: &Embeddings) -> anyhow::Result<evaluate::Evaluation> {
        let at_levels =
            |kind, levels: &[f64]| levels.iter().map(|&level| Noise { kind, level }).collect::<Vec<_>>();
        let mut noises = at_levels(NoiseKind::Symmetric, &[0.0, 0.2, 0.4, 0.6]);
        noises.extend(at_levels(NoiseKind::Paired, &[0.2, 0.4]));
        noises.extend(at_levels(NoiseKind::Outlier, &[0.2, 0.4, 0.6]));
        let sampler = Sampler::new(characters, Some(others), self.spec(WAYS), noises)?;
        // An empty list stands for all inductive methods that need no model file.
        let mut methods = Registry::default().parse_all::<&str>(&[])?;
        match built_in::omniglot_tranfs() {
            Ok(model) => {
                let method = Box::new(TrainedTranfs::from_model(&model)?);
                methods.push(NamedMethod { label: "tranfs".into(), method });
            }
            // The Python package does not contain this model, which works only on these drawings.
            Err(Error::Drawings(OmniglotError::NotBuiltIn)) => {}
            Err(error) => return Err(error.into()),
        }
        let progress = ProgressDisplay::counting(self.episodes, "episodes");
        let experiment = Experiment {
            embeddings: characters,
            outliers: Some(others),
            episodes: &sampler,
            count: self.episodes,
            methods: &methods,
            baseline: "protonet",
            details: Details::default(),
        };
        let evaluation = evaluate::evaluate(&experiment, &progress);
        progress.finish();
        Ok(evaluation?)
    }

    /// The shape of an episode with this number of classes.
    fn spec(&self, ways: usize) -> EpisodeSpec {
        EpisodeSpec { ways, shots: Shots::exactly(SHOTS), queries: QUERIES, seed: self.seed }
    }

    /// A figure of one support set in which two of the five labels of each class are wrong, with the weights that
    /// [`WEIGHTED_METHODS`] give to the items.
    fn support_set_figure(&self, characters: &Embeddings) -> anyhow::Result<SupportSetFigure> {
        let noise = Noise { kind: NoiseKind::Symmetric, level: 0.4 };
        let sampler = Sampler::new(characters, None, self.spec(FIGURE_WAYS), vec![noise])?;
        let drawn = sampler.draw(0, &mut IndexSampler::default())?;
        // The names of the classes of the episode; `given` and `truth` of an item are indices into them.
        let names: Vec<&str> = drawn
            .episode
            .classes
            .iter()
            .map(|class| characters.classes()[class.class as usize].as_str())
            .collect();
        // The episode was drawn with one noise setting, so it has one support set.
        let support = &drawn.supports[0];
        let weights_by_method = item_weights(characters, support)?;
        let classes = names.iter().zip(0..).map(|(name, class)| {
            let mut items = Vec::new();
            for (index, item) in support.iter().enumerate().filter(|(_, item)| item.given == class) {
                let truth = item.truth.filter(|_| item.is_wrong());
                items.push(FigureItem {
                    image: image(characters, item)?,
                    truth: truth.map(|truth| names[truth as usize].to_string()),
                    opinions: weights_by_method
                        .iter()
                        .map(|(name, weights)| (name.to_string(), weights[index]))
                        .collect(),
                });
            }
            Ok(FigureClass { name: name.to_string(), items })
        });
        Ok(SupportSetFigure {
            title: "A noisy support set".into(),
            caption: "In every row, two drawings show another character of the same set. The methods do not \
                know which; a good method gives them less weight."
                .into(),
            classes: classes.collect::<anyhow::Result<_>>()?,
        })
    }
}

/// For each of [`WEIGHTED_METHODS`], its name and the weight that it gives to every item of `support`; 1 is average.
fn item_weights(characters: &Embeddings, support: &[Item]) -> anyhow::Result<Vec<(&'static str, Vec<f32>)>> {
    let values = characters.features().as_f32().expect("made in memory, as f32");
    let dim = characters.dim();
    let rows =
        support.iter().map(|item| &values[item.row as usize * dim..(item.row as usize + 1) * dim]).collect();
    let given = support.iter().map(|item| item.given).collect();
    let task = Task::new(SupportSet::new(rows, given, FIGURE_WAYS));
    let weigh = |name: &'static str| {
        let fitted =
            Registry::default().parse(name)?.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0))?;
        let assessments = fitted.assessments.expect("these methods assess the items");
        Ok((name, assessments.iter().map(|assessment| assessment.weight).collect()))
    };
    WEIGHTED_METHODS.into_iter().map(weigh).collect()
}

/// The drawing of an item as a PNG data URI, found by the name that [`embed`] gave the item.
fn image(characters: &Embeddings, item: &Item) -> anyhow::Result<String> {
    let name = characters.item(item.row as usize).expect("`embed` names every item");
    let (character, number) = name.split_once('/').expect("`embed` names items CHARACTER/DRAWING");
    Ok(drawing(character.parse()?, number.parse()?)?.to_png_data_uri())
}

/// A drawing of the built-in Omniglot sample. Characters, and the drawings of each, are counted from 0.
fn drawing(character: usize, number: usize) -> anyhow::Result<Bitmap> {
    Ok(Omniglot::sample().drawing(character, number).map_err(trueshot_vision::Error::from)?)
}

/// The class name of a character, alphabet and number: `Tengwar-07`.
fn class_name(character: usize) -> String {
    let character = &Omniglot::sample().characters()[character];
    format!("{}-{}", character.alphabet, character.name.trim_start_matches("character"))
}

/// Embeds all drawings of some characters, which are given by index. Classes have the names of [`class_name`]; items
/// are named `CHARACTER/DRAWING`, two indices that [`drawing`] takes.
fn embed(backbone: &Backbone, characters: impl Iterator<Item = usize>) -> anyhow::Result<Embeddings> {
    let numbers = 0..Omniglot::sample().drawings_per_character();
    let indices: Vec<(usize, usize)> =
        characters.flat_map(|character| numbers.clone().map(move |number| (character, number))).collect();
    let drawings = indices.iter().map(|&(character, number)| drawing(character, number));
    let features = built_in::embed_drawings(backbone, &drawings.collect::<anyhow::Result<Vec<_>>>()?);
    let labels = indices.iter().map(|&(character, _)| class_name(character)).collect();
    let items = Items::from_names(indices.iter().map(|(character, number)| format!("{character}/{number}")));
    Ok(Embeddings::from_rows(features, backbone.dim(), labels)?
        .with_items(items)?
        .with_backbone(backbone.name()))
}
