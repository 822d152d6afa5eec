//! Tests of saved classifiers: predictions of every method, the file format, large support sets and novelty.

use super::*;
use crate::audit::Audit;
use crate::method::Registry;
use crate::tensors::tests::{flips, without_checksum};

/// Three classes with different centres; one item of the first class has the label of the second.
fn support() -> Embeddings {
    let noise =
        |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1u64 << 24) as f32;
    let row = |class: usize, item: usize| {
        (0..12).map(move |d| noise(class * 977 + item * 31 + d) + if d / 4 == class { 2.0 } else { 0.0 })
    };
    let mut values = Vec::new();
    let mut labels = Vec::new();
    for class in 0..3 {
        for item in 0..5 {
            let truth = if (class, item) == (1, 4) { 0 } else { class };
            values.extend(row(truth, class * 5 + item));
            labels.push(format!("class {class}"));
        }
    }
    Embeddings::from_rows(values, 12, labels).unwrap().with_backbone("test")
}

fn fit(method: &str) -> Predictor {
    let data = support();
    let audit = Audit::of(&data).run().unwrap();
    Predictor::fit(data, &Registry::default().parse(method).unwrap(), Some(&audit)).unwrap()
}

fn query(class: usize) -> Vec<f32> {
    (0..12).map(|d| 0.5 + if d / 4 == class { 2.0 } else { 0.0 }).collect()
}

#[test]
fn every_method_predicts_the_same_after_saving_and_loading() {
    for method in
        ["relabel", "protonet", "median", "cosine", "nearest:k=3", "matching", "linear", "baseline++", "rnnp"]
    {
        let predictor = fit(method);
        let queries: Vec<Vec<f32>> = (0..3).map(query).collect();
        let rows: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
        let predictions = predictor.predict(&rows).unwrap();
        for (class, prediction) in predictions.iter().enumerate() {
            // A hundred small steps are too few to train a linear layer on features this small.
            assert!(prediction.class as usize == class || method == "linear", "{method}: {prediction:?}");
            let sum = prediction.probabilities.iter().sum::<f32>();
            assert!((sum + prediction.unknown - 1.0).abs() < 1e-5, "{method}: {prediction:?}");
            let if_known = prediction.probabilities_if_known();
            assert!((if_known.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            assert!(if_known[prediction.class as usize] >= prediction.probability);
            assert!(prediction.probability > 0.4 && prediction.unknown < 0.5, "{method}: {prediction:?}");
        }
        let bytes = predictor.to_bytes();
        let again = Predictor::read_bytes(bytes.clone(), "file").unwrap();
        assert_eq!(again.predict(&rows).unwrap(), predictions, "{method}");
        assert_eq!(again.to_bytes(), bytes, "{method}");
        assert_eq!((again.embedder(), again.dim(), again.classes().len()), (Some("test"), 12, 3));
        assert_eq!(again.predict(&rows[1..2]).unwrap()[0], predictions[1], "the same alone as in a batch");
    }
}

#[test]
fn a_row_unlike_all_classes_probably_belongs_to_none() {
    let predictor = fit("relabel");
    let outlier: Vec<f32> = (0..12).map(|d| if d % 2 == 0 { -1.0 } else { 1.0 }).collect();
    let predictions = predictor.predict(&[&query(0), &outlier]).unwrap();
    assert!(predictions[1].unknown > 0.8 && predictions[0].unknown < 0.5, "{predictions:?}");
}

#[test]
fn rows_of_another_dimension_are_refused() {
    let error = fit("relabel").predict(&[&[1.0, 2.0]]).unwrap_err().to_string();
    assert!(error.contains("2") && error.contains("12"), "{error}");
}

#[test]
fn a_truncated_file_or_a_file_of_another_kind_is_refused() {
    let bytes = fit("protonet").to_bytes();
    for length in (0..bytes.len()).step_by(37) {
        assert!(Predictor::read_bytes(bytes[..length].to_vec(), "file").is_err());
    }
    let mut other = crate::tensors::Tensors::default();
    other.set_note("format", "trueshot-model/1");
    assert!(Predictor::read_bytes(other.to_bytes(), "file").is_err());
}

#[test]
fn a_classifier_with_any_bit_flipped_is_refused() {
    for (bit, damaged) in flips(&fit("protonet").to_bytes()).enumerate() {
        assert!(Predictor::read_bytes(damaged, "file").is_err(), "bit {bit}");
    }
}

#[test]
fn a_classifier_of_an_earlier_version_without_a_checksum_is_read() {
    let predictor = fit("relabel");
    let earlier = without_checksum(&predictor.to_bytes());
    let read = Predictor::read_bytes(earlier, "file").unwrap();
    assert_eq!(read.predict(&[&query(1)]).unwrap(), predictor.predict(&[&query(1)]).unwrap());
    assert_eq!(read.to_bytes(), predictor.to_bytes(), "written again, it has a checksum");
}

#[test]
fn a_large_support_set_is_reduced_to_its_most_typical_items() {
    let noise =
        |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1u64 << 24) as f32;
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    for row in 0..800 {
        let (class, is_wrong) = (row % 4, row % 20 == 0);
        let truth = if is_wrong { (class + 1) % 4 } else { class };
        values.extend((0..16).map(|d| noise(row * 16 + d) + if d / 4 == truth { 1.5 } else { 0.0 }));
        labels.push(format!("class {class}"));
    }
    let data = Embeddings::from_rows(values, 16, labels).unwrap();
    let audit = Audit::of(&data).run().unwrap();
    for method in ["relabel", "protonet"] {
        let named = Registry::default().parse(method).unwrap();
        let data = Embeddings::from_rows(
            data.all_rows().into_owned(),
            16,
            (0..800).map(|row| format!("class {}", row % 4)).collect(),
        );
        let predictor = Predictor::fit(data.unwrap(), &named, Some(&audit)).unwrap();
        assert_eq!(predictor.support().len(), 4 * KEPT_PER_CLASS);
        for class in 0..4 {
            let row: Vec<f32> = (0..16).map(|d| 0.5 + if d / 4 == class { 1.5 } else { 0.0 }).collect();
            let prediction = &predictor.predict(&[&row]).unwrap()[0];
            assert!(
                prediction.class as usize == class
                    && prediction.probability > 0.8
                    && prediction.unknown < 0.5,
                "{prediction:?}"
            );
        }
        assert_eq!(
            Predictor::read_bytes(predictor.to_bytes(), "file").unwrap().to_bytes(),
            predictor.to_bytes()
        );
        assert!(predictor.predict(&[]).unwrap().is_empty());
    }
}

#[test]
fn the_uncalibrated_predictor_names_the_same_classes() {
    let registry = Registry::default();
    for method in ["relabel", "protonet", "cosine", "nearest:k=3", "linear", "simpleshot"] {
        let fitted = UncalibratedPredictor::fit(support(), &registry.parse(method).unwrap(), None).unwrap();
        let queries: Vec<Vec<f32>> = (0..3).map(query).collect();
        let rows: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
        let calibrated = fit(method).predict(&rows).unwrap();
        let classes: Vec<u32> = calibrated.iter().map(|prediction| prediction.class).collect();
        assert_eq!(fitted.classify(&rows).unwrap(), classes, "{method}");
        let refused = fitted.classify(&[&rows[0][..5]]);
        assert!(matches!(refused, Err(Error::ClassifierDimension { rows: 5, classifier: 12 })), "{method}");
    }
}

#[test]
fn methods_with_one_vector_per_class_have_prototypes() {
    let prototypes = |method: &str| {
        let fitted =
            UncalibratedPredictor::fit(support(), &Registry::default().parse(method).unwrap(), None).unwrap();
        fitted.prototypes().map(|prototypes| (prototypes.vectors.len(), prototypes.by_cosine))
    };
    assert_eq!(prototypes("protonet"), Some((3, false)));
    assert_eq!(prototypes("relabel"), Some((3, false)));
    assert_eq!(prototypes("simpleshot"), Some((3, false)));
    assert_eq!(prototypes("baseline++"), Some((3, true)));
    assert_eq!(prototypes("nearest"), None);
    assert_eq!(prototypes("linear"), None);
}

#[test]
fn transductive_methods_are_refused() {
    for name in ["laplacianshot", "tim", "bd-cspn", "pt-map"] {
        let method = Registry::default().parse(name).unwrap();
        let error = UncalibratedPredictor::fit(support(), &method, None).err().unwrap();
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("method '{name}' is transductive: it classifies all")),
            "{message}"
        );
        assert!(error.hint().unwrap().contains("simpleshot"), "{:?}", error.hint());
        assert!(Predictor::fit(support(), &method, None).is_err());
    }
}

/// A collection of classes with different centres in 32 dimensions.
struct Clusters {
    centres: Vec<Vec<f32>>,
    rng: crate::rng::Rng,
}

impl Clusters {
    const DIM: usize = 32;

    fn new(classes: usize) -> Self {
        let mut rng = crate::rng::Rng::new(5, crate::rng::Purpose::Items, 0);
        let centres = (0..classes).map(|_| (0..Self::DIM).map(|_| 2.0 * rng.uniform()).collect()).collect();
        Clusters { centres, rng }
    }

    fn item(&mut self, class: usize) -> Vec<f32> {
        self.centres[class].iter().map(|centre| centre + 1.6 * (self.rng.uniform() - 0.5)).collect()
    }

    /// `count` items of each of the classes.
    fn items(&mut self, classes: std::ops::Range<usize>, count: usize) -> Vec<(usize, Vec<f32>)> {
        classes.flat_map(|class| vec![class; count]).map(|class| (class, self.item(class))).collect()
    }

    fn fit(items: &[(usize, Vec<f32>)]) -> Predictor {
        let values = items.iter().flat_map(|(_, row)| row.clone()).collect();
        let labels = items.iter().map(|(class, _)| format!("class {class}")).collect();
        Predictor::of(Embeddings::from_rows(values, Self::DIM, labels).unwrap()).fit().unwrap()
    }
}

/// The probability of "none of the classes" of every item.
fn unknown(predictor: &Predictor, items: &[(usize, Vec<f32>)]) -> Vec<f32> {
    let rows: Vec<&[f32]> = items.iter().map(|(_, row)| &row[..]).collect();
    predictor.predict(&rows).unwrap().iter().map(|prediction| prediction.unknown).collect()
}

/// The share of the items that more probably belong to none of the classes.
fn share_refused(unknown: &[f32]) -> f32 {
    unknown.iter().filter(|&&unknown| unknown >= 0.5).count() as f32 / unknown.len() as f32
}

#[test]
fn items_of_other_classes_are_refused_and_items_of_the_classes_are_not() {
    for (classes, shots, wrong) in
        [(2, 5, 0), (2, 10, 0), (3, 5, 0), (5, 10, 0), (5, 10, 10), (12, 10, 24), (12, 60, 0)]
    {
        let mut clusters = Clusters::new(20);
        let mut support = clusters.items(0..classes, shots);
        // Wrong labels, spread evenly over the items.
        for number in 0..wrong {
            let item = number * support.len() / wrong;
            support[item].0 = (support[item].0 + 1 + number % (classes - 1)) % classes;
        }
        let predictor = Clusters::fit(&support);
        let known = share_refused(&unknown(&predictor, &clusters.items(0..classes, 40)));
        let other = share_refused(&unknown(&predictor, &clusters.items(classes..20, 40)));
        let expected = if classes == 2 { 0.7 } else { 0.9 };
        assert!(known < 0.12 && other > expected, "{classes} {shots} {wrong}: {known} {other}");
        let far: Vec<_> = (0..20).map(|_| (0, (0..32).map(|_| -clusters.rng.uniform()).collect())).collect();
        assert!(unknown(&predictor, &far).iter().all(|&unknown| unknown > 0.9), "{classes} {shots} {wrong}");
    }
}

#[test]
fn the_order_of_the_support_items_does_not_matter() {
    // Of 120 items per class the most typical are kept; all of them are equally probable.
    for per_class in [7, 120] {
        let mut clusters = Clusters::new(8);
        let support = clusters.items(0..6, per_class);
        let queries = clusters.items(0..8, 5);
        let mut shuffled = support.clone();
        shuffled.reverse();
        shuffled.rotate_left(11);
        let (first, second) = (Clusters::fit(&support), Clusters::fit(&shuffled));
        for (a, b) in unknown(&first, &queries).iter().zip(unknown(&second, &queries)) {
            assert!((a - b).abs() < 1e-3, "{per_class} items: {a} {b}");
        }
        let ratio = first.sharpness / second.sharpness;
        assert!((ratio - 1.0).abs() < 1e-3, "{per_class} items: {} {}", first.sharpness, second.sharpness);
    }
}

#[test]
fn one_item_per_class_is_enough_for_probabilities() {
    let mut clusters = Clusters::new(4);
    let predictor = Clusters::fit(&clusters.items(0..3, 1));
    let predictions = unknown(&predictor, &clusters.items(0..4, 5));
    assert!(predictions.iter().all(|unknown| (0.0..=1.0).contains(unknown)), "{predictions:?}");
    assert!(
        predictions[..15].iter().sum::<f32>() / 15.0 < predictions[15..].iter().sum::<f32>() / 5.0,
        "{predictions:?}"
    );
}

#[test]
fn equal_items_do_not_lead_to_infinite_or_undefined_numbers() {
    let items = [0, 0, 0, 1, 1, 1, 2, 2, 2].map(|class| (class, vec![class as f32; 32])).to_vec();
    let predictor = Clusters::fit(&items);
    let predictions = unknown(&predictor, &[items[0].clone(), items[8].clone(), (0, vec![-5.0; 32])]);
    assert!(predictions.iter().all(|unknown| unknown.is_finite()), "{predictions:?}");
}

#[test]
fn a_classifier_of_version_1_is_calibrated_when_it_is_read() {
    let predictor = fit("protonet");
    let file = crate::tensors::Tensors::read_bytes(predictor.to_bytes(), "file").unwrap();
    let mut earlier = crate::tensors::Tensors::default();
    let notes = file.notes().filter(|(key, _)| *key != "trueshot-checksum");
    notes.for_each(|(key, text)| earlier.set_note(key, text));
    earlier.set_note("format", "trueshot-classifier/1");
    for (name, tensor) in
        file.iter().filter(|(name, _)| !["unknown.discriminants", "unknown.biases"].contains(name))
    {
        let values = if name == "numbers" { vec![tensor.values[0], 2.7, 0.3] } else { tensor.values.clone() };
        let shape = if name == "numbers" { vec![3] } else { tensor.shape.clone() };
        earlier.insert(name, &shape, values);
    }
    let read = Predictor::read_bytes(earlier.to_bytes(), "file").unwrap();
    let predictions = read.predict(&[&query(0), &[-1.0; 12]]).unwrap();
    assert_eq!(predictions[0].class, 0);
    assert!(predictions[0].unknown < 0.5 && predictions[1].unknown > 0.8, "{predictions:?}");
    assert!(Predictor::read_bytes(read.to_bytes(), "file").is_ok());
    earlier.set_note("format", "trueshot-classifier/3");
    let error = Predictor::read_bytes(earlier.to_bytes(), "file").err().unwrap().to_string();
    assert!(error.contains("its format is 'trueshot-classifier/3', not 'trueshot-classifier/2'"), "{error}");
}

#[test]
fn an_anonymous_file_predicts_the_same_and_has_no_names_of_examples() {
    let predictor = fit("protonet");
    let bytes = predictor.to_anonymous_bytes();
    let read = Predictor::read_bytes(bytes.clone(), "file").unwrap();
    let row = query(1);
    assert_eq!(read.predict(&[&row]).unwrap(), predictor.predict(&[&row]).unwrap());
    assert_eq!((read.audit(), read.support().items().is_none()), (None, true));
    assert!(bytes.len() < predictor.to_bytes().len());
}

#[test]
fn a_class_without_items_is_left_out() {
    let values = vec![2.0, 0.1, 2.1, 0.0, 1.9, 0.0, 0.1, 2.0, 0.0, 2.1, 0.0, 1.9];
    let data = |classes: [&str; 3]| {
        let first = i64::from(classes[0] == "empty");
        let labels = [0, 0, 0, 1, 1, 1].map(|label| label + first).to_vec();
        let features = Features::from_f32(values.clone(), 2);
        Embeddings::from_numbered(features, labels, classes.map(String::from).to_vec()).unwrap()
    };
    for classes in [["empty", "a", "b"], ["a", "b", "empty"]] {
        for method in ["protonet", "relabel"] {
            let predictor = Predictor::of(data(classes)).method(method).unwrap().fit().unwrap();
            assert_eq!(predictor.classes(), ["a", "b"]);
            let predictions = predictor.predict(&[&[2.0, 0.0], &[0.0, 2.0]]).unwrap();
            assert_eq!((predictions[0].class, predictions[1].class), (0, 1), "{method}: {predictions:?}");
        }
    }
    let single_class = Embeddings::from_numbered(
        Features::from_f32(values.clone(), 2),
        vec![0; 6],
        ["a", "empty"].map(String::from).to_vec(),
    );
    let method = Registry::default().parse("protonet").unwrap();
    assert!(matches!(UncalibratedPredictor::fit(single_class.unwrap(), &method, None), Err(Error::OneClass)));
}

#[test]
fn a_class_of_a_large_set_whose_labels_all_look_wrong_keeps_its_most_probable_item() {
    let mut clusters = Clusters::new(3);
    let items = clusters.items(0..3, 200);
    let values = items.iter().flat_map(|(_, row)| row.clone()).collect();
    let labels = items.iter().map(|(class, _)| format!("class {class}")).collect();
    let data = Embeddings::from_rows(values, Clusters::DIM, labels).unwrap();
    let mut audit = Audit::of(&data).run().unwrap();
    for row in 400..600 {
        audit.shares[row] = vec![(0, 0.9), (2, if row == 433 { 0.1 } else { 0.05 })];
    }
    for method in ["protonet", "relabel"] {
        let method = Registry::default().parse(method).unwrap();
        let data = Embeddings::from_rows(
            data.all_rows().into_owned(),
            Clusters::DIM,
            items.iter().map(|(class, _)| format!("class {class}")).collect(),
        );
        let predictor = Predictor::fit(data.unwrap(), &method, Some(&audit)).unwrap();
        let support = predictor.support();
        assert_eq!((support.classes().len(), support.rows_of(2).len()), (3, 1));
        assert_eq!(*support.row(support.rows_of(2)[0] as usize), items[433].1[..]);
    }
}

#[test]
fn numbers_that_would_give_undefined_probabilities_are_refused() {
    let bytes = fit("protonet").to_bytes();
    // The sharpness, and the last width.
    for (index, value) in [(0, 0.0), (0, -1.0), (9, 0.0), (9, -1.0)] {
        let mut file = crate::tensors::Tensors::read_bytes(bytes.clone(), "file").unwrap();
        file.remove_note("trueshot-checksum");
        let mut numbers = file.values("numbers", 10).unwrap().to_vec();
        numbers[index] = value;
        file.insert("numbers", &[10], numbers);
        let error = Predictor::read_bytes(file.to_bytes(), "file").err().unwrap().to_string();
        assert!(error.contains("not positive"), "{error}");
    }
}

#[test]
fn a_file_of_version_1_with_too_many_classes_for_its_dimension_is_refused() {
    let mut file = crate::tensors::Tensors::default();
    file.set_note("format", "trueshot-classifier/1");
    let classes: Vec<String> = (0..5000).map(|class| class.to_string()).collect();
    file.set_note("classes", serde_json::json!(classes).to_string());
    file.set_note("labels", "[0]");
    file.set_note("rule", "matching");
    file.insert("support", &[1, 20_000], vec![1.0; 20_000]);
    file.insert("numbers", &[3], vec![1.0; 3]);
    let error = Predictor::read_bytes(file.to_bytes(), "file").err().unwrap().to_string();
    assert!(error.contains("5000 classes of 20000 dimensions are too many"), "{error}");
}

#[test]
fn transductive_methods_are_refused_before_the_audit() {
    let never = |_: u64, _: u64| -> std::ops::ControlFlow<()> { panic!("no audit is needed") };
    let refused = Predictor::of(support()).method("tim").unwrap().progress(&never).fit();
    assert!(matches!(refused, Err(Error::Transductive { .. })));
}
