//! Tests of the training of MAML and NegMargin: they learn, give the same result with any number of threads, and can be
//! resumed.

use std::path::Path;

use trueshot::episode::{EpisodeSpec, Episodes, Sampler, Shots};
use trueshot::evaluate::{Details, Experiment, evaluate};
use trueshot::method::Registry;
use trueshot::noise::{Noise, NoiseKind};
use trueshot::rng::IndexSampler;
use trueshot::training::Trainee;
use trueshot_vision::training::maml::{self, GradientOrderSetting, MamlTrainee};
use trueshot_vision::training::negmargin::{self, NegMarginTrainee};
use trueshot_vision::training::{Datasets, ImageSettings, ValidationSettings};
use trueshot_vision::{Backbone, Collection, Dataset, SourceOptions};

use crate::striped_images::{check_same_result_with_any_threads_and_resumed, folder, with_threads};

fn dataset(folder: &Path, pictures: &ImageSettings, augmented: bool) -> Dataset {
    let collection = Collection::open(folder, SourceOptions::default()).unwrap();
    Dataset::load(&collection, &pictures.preprocessing(), augmented, &()).unwrap()
}

fn datasets(folder: &Path, pictures: &ImageSettings) -> Datasets {
    let train = dataset(&folder.join("train"), pictures, pictures.augment);
    Datasets::new(train, Some(dataset(&folder.join("val"), pictures, false)))
}

fn small(validation: ValidationSettings) -> ValidationSettings {
    ValidationSettings { ways: 3, shots: 3, queries: 3, episodes: 40, ..validation }
}

fn maml_configuration() -> maml::MamlConfiguration {
    let mut configuration = maml::MamlConfiguration::photographs();
    configuration.pictures.size = 20;
    configuration.steps = 40;
    configuration.episodes =
        maml::MamlEpisodeSettings { per_step: 3, ways: 3, shots: 3, queries: 3, ..configuration.episodes };
    configuration.adaptation.inner_steps = 2;
    configuration.adaptation.inner_rate = 0.05;
    configuration.validation = small(configuration.validation);
    configuration
}

fn maml_trainee(folder: &Path, configuration: &maml::MamlConfiguration) -> MamlTrainee {
    MamlTrainee::new(configuration.clone(), datasets(folder, &configuration.pictures)).unwrap()
}

fn negmargin_configuration() -> negmargin::NegMarginConfiguration {
    let mut configuration = negmargin::NegMarginConfiguration::photographs();
    configuration.pictures.size = 20;
    configuration.steps = 40;
    configuration.loss.batch = 20;
    configuration.validation = small(configuration.validation);
    configuration
}

fn negmargin_trainee(folder: &Path, configuration: &negmargin::NegMarginConfiguration) -> NegMarginTrainee {
    NegMarginTrainee::new(configuration.clone(), datasets(folder, &configuration.pictures)).unwrap()
}

fn run(trainee: &mut dyn Trainee, steps: std::ops::Range<u64>) -> Vec<f64> {
    steps.map(|step| trainee.step(step).unwrap()[0]).collect()
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn maml_learns_and_its_model_file_classifies_episodes_of_images() {
    let folder = folder();
    for order in [GradientOrderSetting::Second, GradientOrderSetting::First] {
        let mut configuration = maml_configuration();
        configuration.adaptation.order = order;
        let mut trainee = maml_trainee(folder.path(), &configuration);
        let losses = run(&mut trainee, 0..60);
        assert!(mean(&losses[30..]) < 0.85 * mean(&losses[..10]), "{order:?} {losses:?}");
        let validation = trainee.validate().unwrap().unwrap();
        assert!(validation.score > 50.0, "{order:?} {validation:?}");
        let path = folder.path().join("maml.safetensors");
        trainee.model().unwrap().write(&path).unwrap();
        let mut registry = Registry::default();
        trueshot_vision::maml::register(&mut registry);
        let method = registry.parse(&format!("maml:model={}", path.display())).unwrap();
        let rows = dataset(&folder.path().join("val"), &configuration.pictures, false).rows(None).unwrap();
        let spec = EpisodeSpec { ways: 3, shots: Shots::exactly(3), queries: 3, seed: 0 };
        let clean = Noise { kind: NoiseKind::Symmetric, level: 0.0 };
        let sampler = Sampler::new(&rows, None, spec, vec![clean]).unwrap();
        let experiment = Experiment {
            embeddings: &rows,
            outliers: None,
            episodes: &sampler,
            count: 40,
            methods: &[method],
            baseline: "",
            details: Details::default(),
        };
        let accuracy = || evaluate(&experiment, &()).unwrap().settings[0].methods[0].accuracy.unwrap();
        assert_eq!(with_threads(1, accuracy), validation.score, "validation and the file agree");
        assert_eq!(with_threads(1, accuracy), with_threads(3, accuracy));
        let problem = Backbone::open(&path).err().unwrap().to_string();
        assert!(problem.ends_with("its architecture is 'maml'; known is 'conv4'"), "{problem}");
    }
}

#[test]
fn negmargin_learns_and_its_model_is_a_backbone() {
    let folder = folder();
    let configuration = negmargin_configuration();
    let mut trainee = negmargin_trainee(folder.path(), &configuration);
    let losses = run(&mut trainee, 0..80);
    assert!(mean(&losses[70..]) < 0.7 * mean(&losses[..10]), "{losses:?}");
    let validation = trainee.validate().unwrap().unwrap();
    assert!(validation.score > 50.0, "{validation:?}");
    let path = folder.path().join("negmargin.safetensors");
    trainee.model().unwrap().write(&path).unwrap();
    let same =
        Backbone::from_parameters(configuration.pictures.preprocessing(), &trainee.parameters().unwrap());
    let model = Backbone::open(&path).unwrap();
    assert!(model.name().ends_with(&format!("{})", same.name())), "{} {}", model.name(), same.name());
    let mut registry = Registry::default();
    trueshot_vision::maml::register(&mut registry);
    let problem = registry.parse(&format!("maml:model={}", path.display())).err().unwrap().to_string();
    assert!(problem.ends_with("is a model of kind 'conv4', not 'maml'"), "{problem}");
}

#[test]
fn runs_give_the_same_result_on_any_number_of_threads_and_when_resumed() {
    let folder = folder();
    let (maml, negmargin) = (maml_configuration(), negmargin_configuration());
    check_same_result_with_any_threads_and_resumed(|| maml_trainee(folder.path(), &maml), 4, 9);
    check_same_result_with_any_threads_and_resumed(|| negmargin_trainee(folder.path(), &negmargin), 4, 9);
}

#[test]
fn episodes_of_images_are_those_of_their_embeddings() {
    let folder = folder();
    let dataset = dataset(&folder.path().join("val"), &maml_configuration().pictures, false);
    let rows = dataset.rows(Some(Path::new("val"))).unwrap();
    assert_eq!((rows.len(), rows.dim()), (dataset.images().len(), 20 * 20 * 3));
    let mut first = vec![0.0; rows.dim()];
    rows.features().decode_row(0, &mut first);
    let pixels: Vec<f32> = dataset.images()[0].pixels.iter().map(|&value| f32::from(value)).collect();
    assert_eq!(first, pixels);
    let spec = EpisodeSpec { ways: 3, shots: Shots::exactly(3), queries: 2, seed: 5 };
    let noise = vec![Noise { kind: NoiseKind::Paired, level: 1.0 / 3.0 }];
    let of_rows = Sampler::new(&rows, None, spec, noise.clone()).unwrap();
    let of_labels = Sampler::new(dataset.labels(), None, spec, noise).unwrap();
    for index in 0..10 {
        let mut index_sampler = IndexSampler::default();
        assert_eq!(
            of_rows.draw(index, &mut index_sampler).unwrap(),
            of_labels.draw(index, &mut index_sampler).unwrap()
        );
    }
}

#[test]
fn impossible_settings_are_refused_with_the_allowed_ones() {
    let folder = folder();
    let problem = |change: &dyn Fn(&mut maml::MamlConfiguration)| {
        let mut configuration = maml_configuration();
        change(&mut configuration);
        let train = dataset(&folder.path().join("train"), &configuration.pictures, true);
        MamlTrainee::new(configuration, Datasets::new(train, None)).err().unwrap().to_string()
    };
    assert!(problem(&|c| c.validation.ways = 4).contains("validation.ways is 4; allowed: 3, as in training"));
    assert!(problem(&|c| c.adaptation.inner_steps = 0).contains("adaptation.inner_steps is 0"));
    assert!(problem(&|c| c.adaptation.inner_rate = 0.0).contains("adaptation.inner_rate is 0"));
    assert!(problem(&|c| c.episodes.per_step = 0).contains("episodes.per_step is 0"));
    let many = problem(&|c| (c.episodes.ways, c.validation.ways) = (9, 9));
    assert!(many.contains('8') && many.contains('9'), "classes fewer than ways: {many}");
    let few = problem(&|c| c.episodes.queries = 20);
    assert!(few.contains("26") && few.contains("12"), "too few images per class: {few}");
    let mut configuration = negmargin_configuration();
    configuration.loss.batch = 97;
    let train = dataset(&folder.path().join("train"), &configuration.pictures, true);
    let problem = NegMarginTrainee::new(configuration, Datasets::new(train, None)).err().unwrap().to_string();
    assert!(problem.contains("loss.batch is 97; allowed: 2 to 96, the number of images"), "{problem}");
}

/// `docs/training.md` names the defaults of the configurations.
#[test]
fn the_defaults_are_those_that_the_documentation_names() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/training.md");
    let page = std::fs::read_to_string(path).unwrap().replace('\n', " ");
    let says = |words: String| assert!(page.contains(&words), "the page does not say '{words}'");
    for maml in [maml::MamlConfiguration::photographs(), maml::MamlConfiguration::drawings()] {
        says(format!("`--tasks` episodes ({};", maml.episodes.per_step));
        says(format!("`--inner-steps` ({}) steps", maml.adaptation.inner_steps));
        says(format!("`--inner-rate` ({})", maml.adaptation.inner_rate));
        says(format!("`--test-steps` ({})", maml.adaptation.test_steps));
        says(format!("Adam (rate {}, no decay)", maml.optimiser.rate));
        assert_eq!((maml.optimiser.weight_decay, maml.adaptation.order), (0.0, GradientOrderSetting::Second));
        assert_eq!(maml.episodes.noise, ["symmetric=0".parse().unwrap()], "no noise unless asked for");
    }
    for negmargin in
        [negmargin::NegMarginConfiguration::photographs(), negmargin::NegMarginConfiguration::drawings()]
    {
        says(format!("batches of `--batch` ({}) images", negmargin.loss.batch));
        says(format!("`--scale` {} and `--margin` {}", negmargin.loss.scale, negmargin.loss.margin));
        says(format!("Adam has a rate of {}", negmargin.optimiser.rate));
        assert_eq!(negmargin.optimiser.weight_decay, 1e-4);
    }
}
